// Bodies of requests: what is read, what is refused, and that the refusal names the field.
#include "coppice/server/requests.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coppice/server/api_error.h"

namespace coppice {
namespace {

constexpr const char* kMessages = R"("messages":[{"role":"user","content":"hi"}])";

std::string chat_with(const std::string& field) {
  return std::string("{") + kMessages + (field.empty() ? "" : "," + field) + "}";
}

std::string completion_with(const std::string& field) {
  return R"({"prompt":"hi")" + (field.empty() ? "" : "," + field) + "}";
}

// The field that the refusal names; "accepted" where there is none.
template <typename Read>
std::string refused_field(Read read, const std::string& body) {
  try {
    read(body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400) << body;
    EXPECT_LT(std::string(error.what()).size(), 500U) << body.substr(0, 100);
    EXPECT_NO_THROW(parse_json(dump_json(error.to_json()), "error"));
    return error.param();
  }
  return "accepted";
}

std::string refused_chat(const std::string& field) {
  return refused_field(read_chat_body, chat_with(field));
}

CacheConfig small_cache() {
  CacheConfig cache;
  cache.num_layers = 3;
  cache.num_kv_heads = 2;
  cache.head_dim = 8;
  return cache;
}

KvRules rules() {
  return {.eviction = {.policy = "streaming", .budget_entries = 64},
          .budget = KvBudget::parse("64"),
          .ceiling = 256,
          .cache = small_cache(),
          .chunk_tokens = 16};
}

TEST(Requests, a_chat_body_is_read_whole) {
  const ChatBody body = read_chat_body(chat_with(
      R"("model":"m","temperature":0,"top_p":0.5,"min_p":0.1,"top_k":5,"seed":-3,"n":2,
         "stream":true,"stream_options":{"include_usage":true},"stop":["a","b"],
         "max_completion_tokens":7,"logit_bias":{"5":-100},"presence_penalty":1,
         "frequency_penalty":-1,"logprobs":true,"top_logprobs":3,
         "kv":{"budget":32,"policy":"knorm","sinks":2,"recent":3},
         "user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto")"));
  EXPECT_EQ(body.model, "m");
  const Generation& generation = body.generation;
  EXPECT_EQ(generation.n, 2);
  EXPECT_TRUE(generation.stream);
  EXPECT_TRUE(generation.include_usage);
  EXPECT_EQ(generation.sampling.temperature, 0);
  EXPECT_EQ(generation.sampling.top_k, 5);
  EXPECT_EQ(generation.sampling.max_tokens, 7);
  EXPECT_EQ(generation.sampling.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(generation.sampling.logit_bias.at(5), -100);
  EXPECT_EQ(generation.sampling.logprobs, 3);
  EXPECT_EQ(generation.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(generation.kv.budget->entries, 32);
  EXPECT_EQ(generation.kv.policy, "knorm");
}

TEST(Requests, defaults_are_those_of_the_api) {
  const ChatBody chat = read_chat_body(chat_with(""));
  EXPECT_EQ(chat.generation.sampling.temperature, 1.0);
  EXPECT_FALSE(chat.generation.sampling.max_tokens.has_value());
  EXPECT_FALSE(chat.generation.sampling.logprobs.has_value());
  EXPECT_EQ(read_completion_body(completion_with("")).generation.sampling.max_tokens, 16);
}

TEST(Requests, prompts_may_be_text_ids_or_lists) {
  const auto prompts = [](const std::string& prompt) {
    return read_completion_body(R"({"prompt":)" + prompt + "}").prompts;
  };
  EXPECT_EQ(std::get<std::string>(prompts(R"("a")").at(0)), "a");
  EXPECT_EQ(prompts(R"(["a","b"])").size(), 2U);
  EXPECT_EQ(std::get<std::vector<int32_t>>(prompts("[1,2,3]").at(0)).size(), 3U);
  EXPECT_EQ(prompts("[[1],[2,3]]").size(), 2U);
}

TEST(Requests, unknown_and_unsupported_fields_are_named) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("temprature":1)", "temprature"},
      {R"("tools":{})", "tools"},
      {R"("tools":[{"type":"code"}])", "tools[0].type"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":1}}])",
       "tools[0].function.parameters"},
      {R"("tools":[{"type":"function","function":{"name":"f","strict":true}}])",
       "tools[0].function.strict"},
      {R"("tool_choice":"auto")", "tool_choice"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice"},
      {R"("parallel_tool_calls":false)", "parallel_tool_calls"},
      {R"("response_format":{"type":"json_object"})", "response_format"},
      {R"("reasoning_effort":"low")", "reasoning_effort"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream":true,"stream_options":{"chunk":1})", "stream_options.chunk"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("kv":{"kept":[1]})", "kv.kept"},
      {R"("kv":7)", "kv"},
      {R"("max_tokens":3,"max_completion_tokens":4)", "max_completion_tokens"}};
  for (const auto& [field, name] : cases) EXPECT_EQ(refused_chat(field), name) << field;
  EXPECT_EQ(refused_chat(R"("response_format":{"type":"text"})"), "accepted");
  const auto completion = [](const std::string& field) {
    return refused_field(read_completion_body, completion_with(field));
  };
  EXPECT_EQ(completion(R"("best_of":3)"), "best_of");
  EXPECT_EQ(completion(R"("suffix":"x")"), "suffix");
  EXPECT_EQ(completion(R"("kv":{"keep":[0]})"), "kv.keep");
  EXPECT_EQ(completion(R"("kv":{"mark":[0]})"), "kv.mark");
  EXPECT_EQ(refused_field(read_completion_body, "{}"), "prompt");
  EXPECT_EQ(refused_field(read_completion_body, R"({"prompt":[]})"), "prompt");
  EXPECT_EQ(refused_field(read_completion_body, R"({"prompt":["a",5]})"), "prompt");
}

TEST(Requests, A03_A08_S02_wrong_types_and_ranges_are_refused) {
  for (const char* field :
       {R"("max_tokens":-1)", R"("max_tokens":"5")", R"("max_tokens":2.5)",
        R"("max_tokens":2147483648)", R"("stream":"false")", R"("temperature":"x")",
        R"("temperature":"hot")", R"("n":0)", R"("n":129)", R"("n":true)", R"("stop":"")",
        R"("stop":[""])", R"("stop":[1])", R"("seed":1.5)", R"("seed":18446744073709551615)",
        R"("logprobs":1)", R"("model":3)"}) {
    const std::string text = field;
    EXPECT_EQ(refused_chat(text), text.substr(1, text.find(':') - 2)) << field;
  }
  EXPECT_EQ(refused_field(read_chat_body, R"({"messages":"hi"})"), "messages");
  EXPECT_EQ(refused_field(read_chat_body, R"({"messages":[]})"), "messages");
  EXPECT_EQ(refused_field(read_chat_body, "{}"), "messages");
}

TEST(Requests, S05_S11_ids_must_be_ids) {
  for (const char* bias : {R"({"abc":1})", R"({"":1})", R"({"1.5":1})", R"({"5":"x"})", "[1]"}) {
    EXPECT_EQ(refused_chat(R"("logit_bias":)" + std::string(bias)), "logit_bias") << bias;
  }
  for (const char* prompt : {"[-1]", "[2147483648]", "[1.5]", "[[1,-1]]", "[null]", "[true]"}) {
    EXPECT_EQ(refused_field(read_completion_body, R"({"prompt":)" + std::string(prompt) + "}"),
              "prompt")
        << prompt;
  }
}

TEST(Requests, A09_A10_bodies_that_are_no_objects_or_too_deep) {
  const std::string deep(3000, '[');
  for (const std::string& body :
       {std::string("[]"), std::string("5"), std::string("\"x\""), std::string("true"),
        std::string(), std::string("{"), std::string("{\"a\":1,\"a\":2}"),
        "{\"tools\":" + deep + std::string(3000, ']') + "}", std::string(1 << 20, '{'),
        std::string("\xff\xfe{\0}\0", 6), std::string("{\"a\":\"\xff\"}")}) {
    EXPECT_NE(refused_field(read_chat_body, body), "accepted") << body.substr(0, 40);
  }
}

TEST(Requests, objects_with_very_many_keys_are_refused) {
  std::string many = "{";
  for (int i = 0; i < 2000; ++i) many += "\"k" + std::to_string(i) + "\":1,";
  many += "\"z\":1}";
  EXPECT_NE(refused_chat("\"x\":" + many), "accepted");
  std::string escaped;
  for (const char c : many) escaped += c == '"' ? std::string("\\\"") : std::string(1, c);
  const std::string call = R"({"messages":[{"role":"assistant","tool_calls":[{"function":
      {"name":"f","arguments":")" +
                           escaped + R"("}}]}]})";
  EXPECT_EQ(refused_field(read_chat_body, call), "messages");
}

TEST(Requests, A11_cache_fields_of_every_kind_of_wrong) {
  for (const char* name : {"budget", "min_budget", "sinks", "recent"}) {
    for (const char* value :
         {"-1", "1e308", "2.5", "\"64\"", "null", "NaN", "[]", "true", "9223372036854775808"}) {
      const std::string field = std::string(R"("kv":{")") + name + "\":" + value + "}";
      EXPECT_NE(refused_chat(field), "accepted") << field;
    }
  }
  for (const char* value : {"0", "\"0\"", "null", "{}", "[-1]", "[0.5]", "[\"0\"]", "[null]",
                            "[[0]]", "[2147483648]", "[1e308]", "[true]"}) {
    for (const std::string name : {"keep", "mark"}) {
      const std::string field = R"("kv":{")" + name + "\":" + value + "}";
      EXPECT_EQ(refused_chat(field), "kv." + name) << field;
    }
  }
  const KvWish wish =
      read_chat_body(chat_with(R"("kv":{"keep":[3,0,3],"mark":[2,1]})")).generation.kv;
  EXPECT_EQ(wish.keep, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(wish.mark, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(refused_chat(R"("kv":{"budget":0})"), "kv.budget");
  EXPECT_EQ(refused_chat(R"("kv":{"budget":"64MB2"})"), "kv.budget");
  EXPECT_EQ(refused_chat(R"("kv":{"budget":"64MiB"})"), "accepted");
  EXPECT_EQ(refused_chat(R"("kv":{"budget":"full"})"), "accepted");
}

std::string image_body(const std::string& image_url) {
  return R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},)"
         R"({"type":"image_url","image_url":)" +
         image_url + "}]}]}";
}

TEST(Requests, I18_pictures_come_as_data_alone) {
  for (const char* url : {"file:///etc/passwd", "http://127.0.0.1/a.png", "http://169.254.169.254/",
                          "HTTP://[::1]", "/etc/passwd", "", "//host/a.png", "datax:,", "data"})
    EXPECT_EQ(refused_field(read_chat_body, image_body("{\"url\":\"" + std::string(url) + "\"}")),
              "messages[0].content[1].image_url")
        << url;
}

TEST(Requests, I09_broken_data_uris_are_refused) {
  for (const char* data :
       {"data:image/png;base64,hello", "data:image/png;base64,", "data:image/png,aGVsbG8=",
        "data:image/png;base64,aGVs\\nbG8=", "data:image/png;base64,aGVsbG8",
        "data:image/png;base64,====", "data:image/png;base64,aGV=bG8=",
        "data:image/png;base64,aGV_bG8=", "data:;base64", "data:image/png;base64 ,aGVsbG8="})
    EXPECT_EQ(refused_field(read_chat_body, image_body("{\"url\":\"" + std::string(data) + "\"}")),
              "messages[0].content[1].image_url")
        << data;
  for (const char* url : {"5", "null", "{}", "[]", "{\"url\":3}"})
    EXPECT_EQ(refused_field(read_chat_body, image_body(url)), "messages[0].content[1].image_url");
  EXPECT_EQ(refused_field(read_chat_body, R"({"messages":[{"role":"user","content":[
                             {"type":"input_audio","input_audio":{}}]}]})"),
            "messages[0].content");
}

TEST(Requests, I04_pictures_are_taken_out_in_order_up_to_a_number) {
  const std::string one =
      R"({"type":"image_url","image_url":{"url":"DATA:image/png;base64,aGVsbG8=","detail":"low"}})";
  const auto body = [](const std::string& parts) {
    return R"({"messages":[{"role":"user","content":[)" + parts + "]}]}";
  };
  const ChatBody read = read_chat_body(body(
      one + R"(,{"type":"text","text":"b"},{"type":"image_url","image_url":"data:;base64,aGk="})"));
  EXPECT_EQ(read.images, (std::vector<std::string>{"hello", "hi"}));
  const OrderedJson& content = read.chat.messages[0]["content"];
  EXPECT_EQ(content[0], (OrderedJson{{"type", "image"}}));
  EXPECT_EQ(content[1]["text"], "b");
  EXPECT_EQ(content[2], (OrderedJson{{"type", "image"}}));
  std::string many = one;
  for (int i = 0; i < 99; ++i) many += "," + one;
  EXPECT_EQ(refused_field(read_chat_body, body(many)), "messages[0].content[32].image_url");
}

TEST(ResolveKv, fills_in_what_the_request_leaves_open) {
  const EvictionConfig plain = resolve_kv({}, rules(), 1000).most;
  EXPECT_EQ(plain.policy, "streaming");
  EXPECT_EQ(plain.budget_entries, 64);
  EXPECT_EQ(plain.sinks, 4);
  KvWish wish;
  wish.budget = KvBudget::parse("12.5%");
  wish.policy = "knorm";
  const EvictionConfig other = resolve_kv(wish, rules(), 1000).most;
  EXPECT_EQ(other.budget_entries, 125);
  EXPECT_EQ(other.sinks, 0);
}

TEST(ResolveKv, pins_fit_the_budget_or_are_refused) {
  const EvictionConfig kept = resolve_kv({}, rules(), 1000, {{10, 40}, {40, 50}}).most;
  EXPECT_EQ(kept.pins, (std::vector<PositionSpan>{{10, 50}}));
  try {
    resolve_kv({}, rules(), 1000, {{10, 71}});
    ADD_FAILURE() << "61 pinned tokens and 4 sinks in a budget of 64";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(error.param(), "kv.keep");
    for (const char* part : {"61 pinned", "4 sinks", "budget of 64", "at most 60"})
      EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
  }
}

TEST(ResolveKv, budgets_that_may_change_have_a_least_one) {
  KvRules adaptive = rules();
  const auto least = [&](const KvWish& wish, std::vector<PositionSpan> pins = {}) {
    const BudgetRange range = resolve_kv(wish, adaptive, 1000, std::move(pins));
    return range.fixed() ? 0 : range.least.budget_entries;
  };
  EXPECT_EQ(least({}), 0);  // the operator lowers none
  adaptive.min_budget = 16;
  adaptive.ceiling.reset();
  EXPECT_EQ(least({}), 16);
  EXPECT_EQ(least({.budget = KvBudget::parse("100")}), 0);  // named: exact
  EXPECT_EQ(least({.budget = KvBudget::parse("100"), .min_budget = 40}), 40);
  EXPECT_EQ(least({.budget = KvBudget::parse("100"), .min_budget = 4}), 16);
  EXPECT_EQ(least({.min_budget = 64}), 0);
  EXPECT_EQ(least({.budget = KvBudget::parse("16"), .min_budget = 4}), 0);
  EXPECT_EQ(least({.policy = "full"}), 0);
  EXPECT_EQ(least({}, {{10, 40}}), 34);  // what is never evicted, with 4 sinks
  EXPECT_EQ(least({.recent = 20}), 24);
  adaptive.eviction.floor = 30;
  EXPECT_EQ(least({}), 30);
  const auto refused = [&](const KvWish& wish, const KvRules& by) {
    try {
      resolve_kv(wish, by, 200);
    } catch (const ApiError& error) {
      return error.param();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused({.min_budget = 16}, rules()), "kv.min_budget");
  EXPECT_EQ(refused({.min_budget = 65}, adaptive), "kv.min_budget");
  EXPECT_EQ(refused({.budget = KvBudget::parse("full"), .min_budget = 16}, adaptive),
            "kv.min_budget");
}

TEST(BudgetRange, levels_rise_evenly_and_each_is_a_policy) {
  for (const PolicyInfo& info : policies()) {
    if (info.name == "full") continue;
    for (const int64_t most : {5, 17, 64, 1000}) {
      KvRules by = rules();
      by.eviction = {.policy = info.name};
      by.budget.entries = most;
      by.ceiling.reset();
      by.min_budget = 5;
      const BudgetRange range = resolve_kv({}, by, 5000, {{1, 3}});
      EXPECT_EQ(settings_at(range, kBudgetLevels), range.most);
      EXPECT_EQ(settings_at(range, 0), range.least);
      int64_t before = 0;
      for (int level = 0; level <= kBudgetLevels; ++level) {
        const EvictionConfig settings = settings_at(range, level);
        EXPECT_EQ(EvictionPolicy(settings, small_cache()).config(), settings) << info.name;
        EXPECT_GE(settings.budget_entries, before);
        EXPECT_LE(std::abs(settings.budget_entries - (5 + (most - 5) * level / 8)), 1);
        before = settings.budget_entries;
      }
    }
  }
}

TEST(ResolveKv, the_ceiling_and_contradictions_are_refused) {
  const auto refused = [](const KvWish& wish, int64_t tokens) {
    try {
      resolve_kv(wish, rules(), tokens);
    } catch (const ApiError& error) {
      return error.param();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused({.budget = KvBudget::parse("257")}, 1000), "kv.budget");
  EXPECT_EQ(refused({.budget = KvBudget::parse("257")}, 200), "accepted");  // never held
  EXPECT_EQ(refused({.budget = KvBudget::parse("full")}, 1000), "kv.budget");
  EXPECT_EQ(refused({.budget = KvBudget::parse("full")}, 256), "accepted");
  EXPECT_EQ(refused({.budget = KvBudget::parse("8"), .sinks = 9}, 1000), "kv");
  EXPECT_EQ(refused({.sinks = 2147483647}, 1000), "kv");
  EXPECT_EQ(refused({.policy = "magic"}, 1000), "kv");
  EXPECT_EQ(refused({.budget = KvBudget::parse("1B")}, 1000), "kv.budget");
}

}  // namespace
}  // namespace coppice
