// Requests one by one: limits, ends, text, usage, refusals.
#include "coppice/engine/engine.h"

#include <set>

#include "coppice/engine/engine_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kRows = 6;

EvictionConfig streaming(int64_t budget) {
  return {.policy = "streaming", .budget_entries = budget, .sinks = 2};
}

TEST(Engine, A03_max_tokens_counts_are_exact) {
  Engine engine(tiny_model(), engine_config(), letters());
  for (const int64_t count : {0, 1, 2, 7}) {
    const RequestOutput output = engine.run(greedy_request({1, 2, 3}, count));
    EXPECT_EQ(output.tokens.size(), std::size_t(count));
    EXPECT_EQ(output.usage.tokens.generated, count);
    EXPECT_EQ(output.finish_reason, FinishReason::kLength);
    EXPECT_EQ(output.usage.kv.kept_entries, (3 + std::max<int64_t>(0, count - 1)) * kRows);
  }
}

TEST(Engine, K28_exactly_100_tokens_with_a_budget_of_16) {
  Engine engine(tiny_model(), engine_config(streaming(16)));
  const RequestOutput output = engine.run(greedy_request({1, 2, 3}, 100));
  EXPECT_EQ(output.tokens.size(), 100u);
  EXPECT_EQ(output.finish_reason, FinishReason::kLength);
  EXPECT_EQ(output.usage.kv.kept_entries, 16 * kRows);
}

TEST(Engine, K01_positions_count_tokens_read_and_not_entries_kept) {
  Engine engine(tiny_model(), engine_config(streaming(12)));
  Rng rng(1);
  Request request = greedy_request(random_prompt(rng, 30), 0);
  request.keep_session = true;
  const SessionId session = *engine.run(request).session;
  const SequenceId sequence = *engine.sequence_of_session(session);
  EXPECT_EQ(engine.cache().tokens_seen(sequence), 30);
  const std::vector<int32_t> kept = engine.cache().read_row(sequence, 1, 1).positions;
  EXPECT_EQ(std::set<int32_t>(kept.begin(), kept.end()),
            (std::set<int32_t>{0, 1, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29}));
}

TEST(Engine, A14_K21_without_max_tokens_a_generation_ends_by_length) {
  Engine engine(tiny_model(), engine_config(streaming(12)));
  Request endless = greedy_request({1, 2, 3}, 0);
  endless.sampling.max_tokens.reset();
  const RequestId first = engine.submit(endless);
  for (int i = 0; i < 5; ++i) engine.step();
  const RequestId second = engine.submit(greedy_request({4, 5}, 3));
  auto outputs = run_all(engine);  // the first outputs were taken by the five steps
  EXPECT_EQ(outputs[first].usage.tokens.generated, kRange - 3);
  EXPECT_EQ(outputs[first].finish_reason, FinishReason::kLength);
  EXPECT_EQ(outputs[second].tokens.size(), 3u);
}

TEST(Engine, without_max_tokens_the_pool_is_a_limit_too) {
  Engine engine(tiny_model(), engine_config({.policy = "full"}, 3 * kRows));  // 48 tokens a row
  Request endless = greedy_request({1, 2, 3}, 0);
  endless.sampling.max_tokens.reset();
  const RequestOutput output = engine.run(endless);
  EXPECT_EQ(output.tokens.size(), 46u);  // 45 of them read
  EXPECT_EQ(output.finish_reason, FinishReason::kLength);
  EXPECT_EQ(engine.cache().peak_blocks(), 3 * kRows);
}

TEST(Engine, A12_A13_prompts_up_to_the_range_and_not_beyond) {
  Engine engine(tiny_model(), engine_config());
  Rng rng(2);
  for (const int64_t length : {kRange - 2, kRange - 1}) {
    EXPECT_EQ(engine.run(greedy_request(random_prompt(rng, length), 1)).tokens.size(), 1u);
  }
  for (const int64_t length : {kRange, kRange + 1, 2 * kRange}) {
    const Request request = greedy_request(random_prompt(rng, length), 1);
    EXPECT_EQ(code_of([&] { engine.submit(request); }), ErrorCode::kCapacity);
  }
  Request unlimited = greedy_request(random_prompt(rng, kRange), 1);
  unlimited.sampling.max_tokens.reset();
  EXPECT_EQ(code_of([&] { engine.submit(unlimited); }), ErrorCode::kCapacity);
  const Request huge = greedy_request({1}, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(code_of([&] { engine.submit(huge); }), ErrorCode::kCapacity);
  EXPECT_FALSE(engine.has_work());
}

TEST(Engine, a_request_that_can_never_fit_the_pool_is_refused) {
  Engine engine(tiny_model(), engine_config({.policy = "full"}, 2 * kRows));
  EXPECT_EQ(engine.run(greedy_request(std::vector<int32_t>(30, 7), 3)).tokens.size(), 3u);
  const Request request = greedy_request(std::vector<int32_t>(30, 7), 4);
  EXPECT_EQ(code_of([&] { engine.submit(request); }), ErrorCode::kCapacity);
}

TEST(Engine, T18_an_empty_prompt_is_refused_or_starts_from_the_begin_token) {
  Engine engine(tiny_model(), engine_config());
  EXPECT_EQ(code_of([&] { engine.submit(greedy_request({}, 4)); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine.run(greedy_request({1}, 4)).tokens.size(), 4u);  // the next request works
  EngineConfig config = engine_config();
  config.begin_token_id = 1;
  Engine begins(tiny_model(), config);
  EXPECT_EQ(ids_of(begins.run(greedy_request({}, 4)).tokens),
            ids_of(engine.run(greedy_request({1}, 4)).tokens));
}

TEST(Engine, S11_ids_outside_the_vocabulary_are_refused) {
  Engine engine(tiny_model(), engine_config());
  for (const int32_t bad : {-1, int32_t(kVocab), std::numeric_limits<int32_t>::max()}) {
    EXPECT_EQ(code_of([&] {
                engine.submit(greedy_request({1, bad}, 1));
              }),
              ErrorCode::kInvalidArgument);
  }
}

TEST(Engine, A11_bad_cache_settings_are_refused) {
  Engine engine(tiny_model(), engine_config());
  for (const int64_t bad : {int64_t{-1}, int64_t{0}}) {
    Request request = greedy_request({1}, 1);
    request.eviction = streaming(bad);
    EXPECT_EQ(code_of([&] { engine.submit(request); }), ErrorCode::kInvalidArgument);
    request = greedy_request({1}, 1);
    request.chunk_tokens = bad;
    EXPECT_EQ(code_of([&] { engine.submit(request); }), ErrorCode::kInvalidArgument);
  }
  Request huge = greedy_request({1}, 1);
  huge.eviction = streaming(std::numeric_limits<int64_t>::max() - 1);
  EXPECT_EQ(code_of([&] { engine.submit(huge); }), ErrorCode::kInvalidArgument);
  huge.eviction = streaming(std::numeric_limits<int32_t>::max());
  EXPECT_EQ(engine.run(huge).tokens.size(), 1u);  // a budget above the length costs nothing
  Request unknown = greedy_request({1}, 1);
  unknown.eviction = EvictionConfig{.policy = "nonesuch"};
  EXPECT_EQ(code_of([&] { engine.submit(unknown); }), ErrorCode::kNotFound);
}

TEST(Engine, a_gated_policy_needs_a_gate) {
  Engine engine(tiny_model(/*gated=*/false), engine_config());
  Request request = greedy_request({1}, 1);
  request.eviction = EvictionConfig{.policy = "dbtrimkv", .budget_entries = 8};
  EXPECT_EQ(code_of([&] { engine.submit(request); }), ErrorCode::kInvalidArgument);
}

TEST(Engine, bad_engine_settings_are_refused) {
  const auto refused = [](const std::function<void(EngineConfig&)>& set) {
    EngineConfig config = engine_config();
    set(config);
    EXPECT_EQ(code_of([&] { Engine engine(tiny_model(), config); }), ErrorCode::kInvalidArgument);
  };
  refused([](EngineConfig& c) { c.max_blocks = 0; });
  refused([](EngineConfig& c) { c.chunk_tokens = 0; });
  refused([](EngineConfig& c) { c.scheduler.max_sequences = 0; });
  refused([](EngineConfig& c) { c.end_token_ids = {kVocab}; });
  refused([](EngineConfig& c) { c.begin_token_id = -1; });
  refused([](EngineConfig& c) { c.kv_dtype = at::kLong; });
  refused([](EngineConfig& c) {
    c.compact_positions = true;
    c.chunk_tokens = kRange / 2 + 1;
  });
}

TEST(Engine, T19_any_of_several_end_tokens_ends_and_shows_no_text) {
  EngineConfig config = engine_config();
  config.end_token_ids = {5, 60, 7};
  Engine engine(tiny_model(), config, letters());
  for (const int64_t end : config.end_token_ids) {
    Request request = greedy_request({1, 2}, 20);
    request.sampling.logit_bias = {{end, 100.0}};
    const RequestOutput output = engine.run(request);
    EXPECT_EQ(ids_of(output.tokens), std::vector<int32_t>{int32_t(end)});
    EXPECT_EQ(output.finish_reason, FinishReason::kStop);
    EXPECT_EQ(output.text, ".");  // what the stream held back, nothing of the end token
    request.sampling.ignore_eos = true;
    EXPECT_EQ(engine.run(request).tokens.size(), 20u);
    request.sampling.stop_token_ids = {end};
    EXPECT_EQ(engine.run(request).tokens.size(), 1u);
  }
}

TEST(Engine, A02_stop_strings_over_several_tokens) {
  Engine engine(tiny_model(), engine_config(), letters());
  const RequestOutput whole = engine.run(greedy_request({1, 2, 3}, 30));
  ASSERT_EQ(whole.text.size(), 31u);  // a letter each, and what was held back
  const std::string stop = whole.text.substr(10, 5);
  Request request = greedy_request({1, 2, 3}, 30);
  request.sampling.stop = {"never", stop};
  std::string streamed;
  const RequestOutput output = engine.run(request, [&](const RequestOutput& part) {
    streamed += part.text;
    return true;
  });
  EXPECT_EQ(output.text, whole.text.substr(0, whole.text.find(stop)));
  EXPECT_EQ(streamed, output.text);
  EXPECT_EQ(output.finish_reason, FinishReason::kStop);
  // A stop that has only begun when the tokens end is text after all.
  request.sampling.stop = {whole.text.substr(28, 3) + "?"};
  EXPECT_EQ(engine.run(request).text, whole.text);
  Engine mute(tiny_model(), engine_config());
  EXPECT_EQ(code_of([&] { mute.submit(request); }), ErrorCode::kInvalidArgument);
}

TEST(Engine, T10_a_limit_inside_a_character_flushes_what_was_held_back) {
  Engine engine(tiny_model(), engine_config(), letters({{9, ""}}));
  Request request = greedy_request({1}, 1);
  request.sampling.logit_bias = {{9, 100.0}};
  EXPECT_EQ(engine.run(request).text, ".");
}

TEST(Engine, A15_A17_requests_queue_and_a_refused_one_blocks_nobody) {
  EngineConfig config = engine_config({.policy = "full"}, 4 * kRows);
  config.scheduler.max_sequences = 2;
  Engine engine(tiny_model(), config);
  Rng rng(6);
  std::map<RequestId, std::vector<int32_t>> expected;
  for (int i = 0; i < 8; ++i) {
    const Request request = greedy_request(random_prompt(rng, 20), 5);
    const Request too_long = greedy_request(random_prompt(rng, 100), 5);
    EXPECT_EQ(code_of([&] { engine.submit(too_long); }), ErrorCode::kCapacity);
    Engine alone(tiny_model(), engine_config());
    expected[engine.submit(request)] = ids_of(alone.run(request).tokens);
  }
  auto outputs = run_all(engine);
  for (const auto& [id, ids] : expected) EXPECT_EQ(ids_of(outputs[id].tokens), ids);
  EXPECT_LE(engine.cache().peak_blocks(), 4 * kRows);
}

TEST(Engine, usage_has_the_keys_that_every_command_prints) {
  Engine engine(tiny_model(), engine_config(streaming(12)), letters());
  Rng rng(4);
  const RequestOutput output = engine.run(greedy_request(random_prompt(rng, 40), 6));
  const Json json = result_json(output.text, output.finish_reason, output.usage);
  EXPECT_EQ(json["text"], output.text);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["tokens"], (Json{{"prompt", 40}, {"generated", 6}, {"reused", 0}}));
  const Json& kv = json["kv"];
  EXPECT_EQ(kv["policy"], "streaming");
  EXPECT_EQ(kv["budget_entries"], 12 * kRows);
  EXPECT_EQ(kv["kept_entries"], 12 * kRows);
  EXPECT_EQ(kv["evicted_entries"], (45 - 12) * kRows);
  EXPECT_EQ(kv["peak_entries"], (12 + 8) * kRows);
  EXPECT_EQ(kv["bytes_bound"], engine.cache().bytes_bound());
  EXPECT_GT(kv["bytes_peak"], 0);
  EXPECT_LE(kv["bytes_peak"], kv["bytes_bound"]);
  EXPECT_GT(json["timing"]["prefill_tokens_per_s"], 0.0);
  EXPECT_GT(json["timing"]["decode_tokens_per_s"], 0.0);
  EXPECT_GT(json["timing"]["evict_share"], 0.0);
  EXPECT_LT(json["timing"]["evict_share"], 1.0);
  EXPECT_EQ(json["timing"].size(), 4u);
  Engine full(tiny_model(), engine_config());
  EXPECT_TRUE(to_json(full.run(greedy_request({1}, 1)).usage)["kv"]["budget_entries"].is_null());
}

TEST(Engine, kv_dtypes_run_and_cost_what_they_should) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    EngineConfig config = engine_config(streaming(12));
    config.kv_dtype = dtype;
    Engine engine(tiny_model(), config);
    EXPECT_EQ(engine.run(greedy_request({1, 2, 3}, 20)).tokens.size(), 20u);
    EXPECT_EQ(engine.cache().config().entry_bytes(), 2 * 8 * (dtype == at::kFloat ? 4 : 2) + 13);
  }
}

TEST(Engine, worst_case_blocks_bounds_what_is_held) {
  CacheConfig cache = cache_config(tiny_args(), at::kFloat, at::kCPU);
  EXPECT_EQ(worst_case_blocks(cache, {.policy = "full"}, 8, 33), 3 * kRows);
  EXPECT_EQ(worst_case_blocks(cache, streaming(100), 8, 33), 3 * kRows);  // never full
  EXPECT_EQ(worst_case_blocks(cache, streaming(16), 16, 1 << 20),
            worst_case_blocks(cache, streaming(16), 16, EvictionConfig::kUnbounded));
  EXPECT_EQ(
      code_of([&] { worst_case_blocks(cache, {.policy = "full"}, 8, EvictionConfig::kUnbounded); }),
      ErrorCode::kCapacity);
}

TEST(Engine, run_can_be_ended_from_outside) {
  Engine engine(tiny_model(), engine_config(), letters());
  Request request = greedy_request({1, 2, 3}, 30);
  request.keep_session = true;
  const RequestOutput output = engine.run(
      request, [](const RequestOutput& part) { return part.usage.tokens.generated < 4; });
  EXPECT_EQ(output.tokens.size(), 4u);
  EXPECT_EQ(output.finish_reason, FinishReason::kStop);
  EXPECT_EQ(engine.session_tokens(*output.session).size(), 7u);
  request.keep_session = false;
  engine.run(request, [](const RequestOutput&) { return false; });
  EXPECT_EQ(engine.sessions().size(), 1u);
  EXPECT_FALSE(engine.has_work());
}

}  // namespace
}  // namespace coppice
