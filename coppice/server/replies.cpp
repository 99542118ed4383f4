#include "coppice/server/replies.h"

#include <algorithm>
#include <cmath>

namespace coppice {
namespace {

// -Inf is no number in JSON.
double finite(float logprob) { return logprob < -9999.0F ? -9999.0 : logprob; }

Json bytes_json(std::string_view bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

Json logprob_entry(int32_t id, float logprob, const Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  return {{"token", bytes}, {"logprob", finite(logprob)}, {"bytes", bytes_json(bytes)}};
}

// Tokens without text (end tokens) are no part of the answer.
bool shown(const SampledToken& token, const Tokenizer& tokenizer) {
  return !tokenizer.is_special(token.id);
}

Json chat_logprobs(const Choice& choice, const Tokenizer& tokenizer) {
  Json content = Json::array();
  for (const SampledToken& token : choice.tokens) {
    if (!shown(token, tokenizer)) continue;
    Json entry = logprob_entry(token.id, token.logprob, tokenizer);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& top : token.top) {
      entry["top_logprobs"].push_back(logprob_entry(top.id, top.logprob, tokenizer));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

int64_t characters(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

// What of the token's bytes `text` begins with: all, all but a leading blank that the vocabulary
// puts before a text, or, of a begin token that was added, nothing.
std::string_view part_shown(std::string_view text, std::string_view bytes) {
  if (text.starts_with(bytes)) return bytes;
  const bool blank = bytes.starts_with(' ') && text.starts_with(bytes.substr(1));
  return blank ? bytes.substr(1) : std::string_view();
}

// A token with log-probabilities and what the text shows of it. With a scored prompt every token
// has an entry, end tokens too: who asks for it counts them.
struct ShownToken {
  const SampledToken& token;
  std::string_view text;
};
std::vector<ShownToken> shown_tokens(const Choice& choice, const Tokenizer& tokenizer) {
  std::vector<ShownToken> list;
  std::string_view text = choice.text;
  for (const SampledToken& token : choice.prompt) {
    const std::string_view part = part_shown(text, tokenizer.token_bytes(token.id));
    list.push_back({token, part});
    text.remove_prefix(part.size());
  }
  for (const SampledToken& token : choice.tokens) {
    const bool visible = shown(token, tokenizer);
    if (!visible && !choice.all_tokens) continue;
    list.push_back({token, visible ? tokenizer.token_bytes(token.id) : std::string_view()});
  }
  return list;
}

Json top_json(const SampledToken& token, const Tokenizer& tokenizer) {
  Json top = Json::object();
  for (const TokenLogprob& other : token.top) {
    top.emplace(tokenizer.token_bytes(other.id), finite(other.logprob));
  }
  top.emplace(tokenizer.token_bytes(token.id), finite(token.logprob));
  return top;
}

// An offset is where a token begins in the text, in characters; a token that the text does not show
// has the offset of the next.
Json completion_logprobs(const Choice& choice, const Tokenizer& tokenizer) {
  Json tokens = Json::array(), scores = Json::array(), tops = Json::array();
  Json offsets = Json::array();
  int64_t offset = choice.text_offset;
  for (const auto& [token, text] : shown_tokens(choice, tokenizer)) {
    tokens.push_back(tokenizer.token_bytes(token.id));
    offsets.push_back(offset);
    offset += characters(text);
    const bool predicted = !std::isnan(token.logprob);  // the first of a prompt is not
    scores.push_back(predicted ? Json(finite(token.logprob)) : Json(nullptr));
    tops.push_back(predicted ? top_json(token, tokenizer) : Json(nullptr));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(scores)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json finish_json(const Choice& choice) {
  if (choice.finish_reason == FinishReason::kNone) return nullptr;
  if (choice.finish_reason == FinishReason::kStop && choice.called) return "tool_calls";
  return to_string(choice.finish_reason);
}

Json calls_json(const ReplyHead& head, const Choice& choice, bool stream) {
  Json list = Json::array();
  for (std::size_t i = 0; i < choice.calls.size(); ++i) {
    const std::size_t number = choice.first_call + i;
    Json call = {
        {"id", fmt::format("call-{}-{}-{}", head.id, choice.index, number)},
        {"type", "function"},
        {"function", {{"name", choice.calls[i].name}, {"arguments", choice.calls[i].arguments}}}};
    if (stream) call["index"] = number;
    list.push_back(std::move(call));
  }
  return list;
}

Json head_json(const ReplyHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Json choice_json(const ReplyHead& head, const Choice& choice, bool logprobs,
                 const Tokenizer& tokenizer) {
  Json result = {
      {"index", choice.index}, {"finish_reason", finish_json(choice)}, {"logprobs", nullptr}};
  if (head.kind == ApiKind::kChat) {
    const bool calls_alone = choice.text.empty() && !choice.calls.empty();
    result["message"] = {{"role", "assistant"},
                         {"content", calls_alone ? Json(nullptr) : Json(choice.text)},
                         {"refusal", nullptr}};
    if (!choice.reasoning.empty()) result["message"]["reasoning_content"] = choice.reasoning;
    if (!choice.calls.empty()) result["message"]["tool_calls"] = calls_json(head, choice, false);
    if (logprobs) result["logprobs"] = chat_logprobs(choice, tokenizer);
  } else {
    result["text"] = choice.text;
    if (logprobs) result["logprobs"] = completion_logprobs(choice, tokenizer);
  }
  return result;
}

}  // namespace

int64_t text_end(const Choice& choice, const Tokenizer& tokenizer) {
  int64_t end = choice.text_offset;
  for (const ShownToken& one : shown_tokens(choice, tokenizer)) end += characters(one.text);
  return end;
}

Json usage_json(std::span<const Choice> choices, int64_t n, const EvictionConfig& eviction) {
  int64_t prompt = 0, generated = 0, cached = 0, reused = 0, seen = 0, kept = 0, evicted = 0,
          images = 0;
  int64_t peak = 0, bytes = 0, bound = 0;
  Json budget_entries = nullptr;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const Usage& usage = choices[i].usage;
    if (i % static_cast<std::size_t>(n) == 0) {
      prompt += usage.tokens.prompt;
      cached += usage.tokens.reused;
    }
    generated += usage.tokens.generated;
    reused += usage.tokens.reused;
    // The last token drawn is not read.
    seen += usage.tokens.prompt + std::max<int64_t>(0, usage.tokens.generated - 1);
    kept += usage.kv.kept_entries;
    images += usage.kv.kept_image_entries;
    evicted += usage.kv.evicted_entries;
    peak += usage.kv.peak_entries;
    bytes += usage.kv.bytes_peak;
    bound = usage.kv.bytes_bound;
    if (usage.kv.budget_entries) budget_entries = *usage.kv.budget_entries;
  }
  const bool bounded = eviction.budget_entries != EvictionConfig::kUnbounded;
  const auto number = [](const std::optional<int64_t>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated},
          {"prompt_tokens_details", {{"cached_tokens", cached}}},
          {"kv",
           {{"policy", bounded ? eviction.policy : "full"},
            {"budget", bounded ? Json(eviction.budget_entries) : Json(nullptr)},
            {"sinks", number(eviction.sinks)},
            {"recent", number(eviction.recent)},
            {"seen", seen},
            {"reused", reused},
            {"kept", kept},
            {"evicted", evicted},
            {"bytes", bytes},
            {"budget_entries", budget_entries},
            {"kept_entries", kept},
            {"kept_image_entries", images},
            {"evicted_entries", evicted},
            {"peak_entries", peak},
            {"bytes_peak", bytes},
            {"bytes_bound", bound}}}};
}

Json answer_json(const ReplyHead& head, std::span<const Choice> choices, bool logprobs,
                 const Tokenizer& tokenizer, const Json& usage) {
  const bool chat = head.kind == ApiKind::kChat;
  Json result = head_json(head, chat ? "chat.completion" : "text_completion");
  result["choices"] = Json::array();
  for (const Choice& choice : choices) {
    result["choices"].push_back(choice_json(head, choice, logprobs, tokenizer));
  }
  result["usage"] = usage;
  return result;
}

Json chunk_json(const ReplyHead& head, const Choice& fresh, bool first, bool logprobs,
                const Tokenizer& tokenizer) {
  const bool chat = head.kind == ApiKind::kChat;
  Json result = head_json(head, chat ? "chat.completion.chunk" : "text_completion");
  Json choice = choice_json(head, fresh,
                            logprobs && !(fresh.tokens.empty() && fresh.prompt.empty()), tokenizer);
  if (chat) {
    choice.erase("message");
    choice["delta"] = Json::object();
    if (first) choice["delta"]["role"] = "assistant";
    if (first || !fresh.text.empty()) choice["delta"]["content"] = fresh.text;
    if (!fresh.reasoning.empty()) choice["delta"]["reasoning_content"] = fresh.reasoning;
    if (!fresh.calls.empty()) choice["delta"]["tool_calls"] = calls_json(head, fresh, true);
  }
  result["choices"] = Json::array({std::move(choice)});
  return result;
}

Json usage_chunk_json(const ReplyHead& head, const Json& usage) {
  const bool chat = head.kind == ApiKind::kChat;
  Json result = head_json(head, chat ? "chat.completion.chunk" : "text_completion");
  result["choices"] = Json::array();
  result["usage"] = usage;
  return result;
}

Json trace_chunk_json(const ReplyHead& head, Json trace) {
  Json result = head_json(head, "chat.completion.chunk");
  result["choices"] = Json::array();
  result["kv_trace"] = std::move(trace);
  return result;
}

}  // namespace coppice
