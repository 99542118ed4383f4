// The JSON that goes back: objects of OpenAI's API, with what the cache did in `usage.kv`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/engine/request.h"
#include "coppice/eviction/policy.h"
#include "coppice/processor/tokenizer.h"
#include "coppice/server/reply_parser.h"

namespace coppice {

enum class ApiKind { kChat, kCompletion };

// What all objects of one answer share.
struct ReplyHead {
  ApiKind kind = ApiKind::kChat;
  std::string id;
  int64_t created = 0;
  std::string model;
};

// One choice as far as it has come.
struct Choice {
  int64_t index = 0;
  std::string text = {};
  // Chats: what was kept apart from `text`.
  std::string reasoning = {};
  std::vector<ToolCall> calls = {};
  std::size_t first_call = 0;  // the number of calls[0] in the whole answer
  std::vector<SampledToken> tokens = {};
  // Completions with echo and logprobs: of the prompt's tokens, whose text `text` begins with.
  std::vector<SampledToken> prompt = {};
  bool all_tokens = false;  // log-probabilities of control tokens as well
  int64_t text_offset = 0;  // where `text` begins in the whole answer, in characters
  bool called = false;      // so far
  FinishReason finish_reason = FinishReason::kNone;
  Usage usage = {};
};

// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "kv"}. Choices of
// one prompt stand together, `n` of each; a prompt's tokens count once. `eviction` has nothing
// unset.
Json usage_json(std::span<const Choice> choices, int64_t n, const EvictionConfig& eviction);

// Where the text of the choice's tokens ends, in characters of the whole answer.
int64_t text_end(const Choice& choice, const Tokenizer& tokenizer);

// The whole answer. `logprobs`: whether they were asked for.
Json answer_json(const ReplyHead& head, std::span<const Choice> choices, bool logprobs,
                 const Tokenizer& tokenizer, const Json& usage);

// A chunk of a stream with what is new of one choice: its text, its tokens, perhaps its end.
// `first`: the chunk names the role.
Json chunk_json(const ReplyHead& head, const Choice& fresh, bool first, bool logprobs,
                const Tokenizer& tokenizer);
// The chunk with usage, which has no choices.
Json usage_chunk_json(const ReplyHead& head, const Json& usage);
// The chunk with what cache_view.h writes, which has no choices either.
Json trace_chunk_json(const ReplyHead& head, Json trace);

}  // namespace coppice
