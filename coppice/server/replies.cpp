#include "coppice/server/replies.h"

#include <algorithm>

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

Json completion_logprobs(const Choice& choice, const Tokenizer& tokenizer) {
  Json tokens = Json::array(), scores = Json::array(), tops = Json::array();
  Json offsets = Json::array();
  int64_t offset = 0;
  for (const SampledToken& token : choice.tokens) {
    if (!shown(token, tokenizer)) continue;
    const std::string_view bytes = tokenizer.token_bytes(token.id);
    tokens.push_back(bytes);
    scores.push_back(finite(token.logprob));
    offsets.push_back(offset);
    offset += static_cast<int64_t>(bytes.size());
    Json top = Json::object();
    for (const TokenLogprob& other : token.top) {
      top[std::string(tokenizer.token_bytes(other.id))] = finite(other.logprob);
    }
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(scores)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json finish_json(FinishReason reason) {
  return reason == FinishReason::kNone ? Json(nullptr) : Json(to_string(reason));
}

Json head_json(const ReplyHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Json choice_json(const ReplyHead& head, const Choice& choice, bool logprobs,
                 const Tokenizer& tokenizer) {
  Json result = {{"index", choice.index},
                 {"finish_reason", finish_json(choice.finish_reason)},
                 {"logprobs", nullptr}};
  if (head.kind == ApiKind::kChat) {
    result["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    if (logprobs) result["logprobs"] = chat_logprobs(choice, tokenizer);
  } else {
    result["text"] = choice.text;
    if (logprobs) result["logprobs"] = completion_logprobs(choice, tokenizer);
  }
  return result;
}

}  // namespace

Json usage_json(std::span<const Choice> choices, int64_t n, const EvictionConfig& eviction) {
  int64_t prompt = 0, generated = 0, cached = 0, reused = 0, seen = 0, kept = 0, evicted = 0;
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
  Json choice = choice_json(head, fresh, logprobs && !fresh.tokens.empty(), tokenizer);
  if (chat) {
    choice.erase("message");
    choice["delta"] = Json::object();
    if (first) choice["delta"]["role"] = "assistant";
    if (first || !fresh.text.empty()) choice["delta"]["content"] = fresh.text;
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
