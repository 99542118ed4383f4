// What a client asks of the engine, what comes back, and the usage numbers that every command and
// the server print. Plain aggregates.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/engine/image_span.h"
#include "coppice/engine/sampler.h"
#include "coppice/engine/sampling_params.h"
#include "coppice/eviction/policy.h"

namespace coppice {

using RequestId = int64_t;
using SessionId = int64_t;

struct Request {
  // Token ids to read. With `session`: what follows the tokens the session already has, the
  // generated ones and a generated end token included (Engine::session_tokens tells them).
  std::vector<int32_t> prompt = {};
  SamplingParams sampling = {};
  // What tokens of the sequence embed to in place of the vocabulary's rows, in order. Those of
  // tokens that the session has read may be given again.
  std::vector<ImageSpan> images = {};

  // Absent: the engine's default, or what the session was started with. A session keeps its policy;
  // only the budget, what is recent and the pins of tokens it has not read may change from turn to
  // turn.
  std::optional<EvictionConfig> eviction = {};
  // Tokens read per pass while the prompt is read; eviction follows each. Absent: the engine's
  // default. It decides which tokens compete, so it is never changed by load.
  std::optional<int64_t> chunk_tokens = {};

  std::optional<SessionId> session = {};  // continue this finished sequence
  bool keep_session = false;  // keep the sequence when done; its id is in the last output
  // An earlier request that this one goes on for: its prompt is read in that one's turn.
  std::optional<RequestId> in_place_of = {};
  // With keep_session: also where the request fails. The session then has what was read; where the
  // choice of what to evict failed, entries above its budget too, which go when it is continued.
  bool keep_failed = false;

  // Score the prompt's tokens as well, with as many alternatives as sampling.logprobs says.
  bool score_prompt = false;
};

enum class FinishReason : uint8_t {
  kNone,    // not finished
  kStop,    // an end token or a stop string
  kLength,  // max_tokens, or the end of positions or memory
  kError,   // see RequestOutput::error
};

std::string_view to_string(FinishReason reason);  // "stop", "length", ...

struct TokenUsage {
  int64_t prompt = 0;     // all tokens before the first generated one, reused ones included
  int64_t generated = 0;  // an end token included
  int64_t reused = 0;     // of `prompt`: read by an earlier request of the session
};

// Entries count all layers and heads: one token of a model with L layers and Hkv heads writes
// L x Hkv of them.
struct KvUsage {
  std::string policy;
  std::optional<int64_t> budget_entries;  // budget x L x Hkv; absent: unbounded
  // The least that was in force, where a server may change it on the way.
  std::optional<int64_t> least_budget_entries;
  int64_t kept_entries = 0;        // held when the request ended
  int64_t kept_image_entries = 0;  // of them, of pictures; counted when it ended
  int64_t evicted_entries = 0;     // dropped since the sequence began
  int64_t peak_entries = 0;        // most held at once, a chunk in flight included
  int64_t bytes_bound = 0;         // of the whole pool: never passed
  int64_t bytes_peak = 0;          // most bytes of blocks this sequence held at once
};

struct TimingUsage {
  double load_s = 0.0;                // filled in by whoever loaded the model
  double prefill_tokens_per_s = 0.0;  // 0 when nothing was read
  double decode_tokens_per_s = 0.0;   // 0 when no pass was a decode pass
  double evict_share = 0.0;           // eviction / all time of this request's steps
};

struct Usage {
  TokenUsage tokens;
  KvUsage kv;
  TimingUsage timing;
};

// {"tokens": {...}, "kv": {...}, "timing": {...}} with the fields' names as keys; an absent budget
// is null.
Json to_json(const Usage& usage);
// The object every command prints: {"text", "finish_reason", "tokens", "kv", "timing"}.
Json result_json(std::string_view text, FinishReason reason, const Usage& usage);

struct RequestError {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::exception_ptr cause = nullptr;  // what was thrown, where something was
};

// What one step brought for one request.
struct RequestOutput {
  RequestId id = 0;
  std::string text;  // new text, whole characters, without stop strings and end tokens
  std::vector<SampledToken> tokens;  // new tokens, an end token included
  // With Request::score_prompt, in order over all outputs, one for each token of the prompt
  // that this request reads: what the cache as it was predicted of it. The first has logprob NaN,
  // for nothing predicts it.
  std::vector<SampledToken> prompt_scores;
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<RequestError> error;  // with kError
  std::optional<SessionId> session;   // in the last output, when kept
  Usage usage;                        // up to date in every output

  bool finished() const { return finish_reason != FinishReason::kNone; }
};

}  // namespace coppice
