// One token stream that a request reads and extends: its tokens, its random stream, its text, its
// limits and its counts. Internal to the engine; it touches the cache only to read counts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coppice/cache/kv_cache.h"
#include "coppice/engine/request.h"
#include "coppice/engine/sampler.h"
#include "coppice/engine/stop_strings.h"
#include "coppice/engine/text_stream.h"
#include "coppice/eviction/policy.h"

namespace coppice {

// What outlives a request when its sequence is kept.
struct SequenceContext {
  std::optional<SequenceId> cache_id;  // absent: nothing was read yet
  std::vector<int32_t> tokens;         // all, in order; those past tokens_seen are not read yet
  std::vector<ImageSpan> images;       // in order
  EvictionConfig eviction;
  int64_t evicted_entries = 0;
  int64_t peak_entries = 0;
  int64_t peak_blocks = 0;

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

// Blocks that all rows of a sequence hold.
int64_t blocks_of(const KvCache& cache, SequenceId sequence);

// What Engine::submit worked out for a request.
struct SequenceLimits {
  int64_t max_new_tokens = 0;
  int64_t chunk_tokens = 0;
  int64_t worst_blocks = 0;
  int64_t vocab_size = 0;
  std::vector<int64_t> end_token_ids;  // of the model and the request, as far as they are honoured
};

class Sequence final {
 public:
  // `context` holds the session's tokens and the prompt. `text` may be null.
  Sequence(RequestId id, const Request& request, SequenceContext context, int64_t reused_tokens,
           EvictionPolicy policy, const SequenceLimits& limits, std::unique_ptr<TextStream> text);

  RequestId id() const { return id_; }
  RequestId arrival() const { return arrival_; }  // the lower, the earlier its prompt is read
  SequenceContext& context() { return context_; }
  const SequenceContext& context() const { return context_; }
  EvictionPolicy& policy() { return policy_; }
  // Another budget, and the blocks it may hold then.
  void change_policy(EvictionPolicy policy, int64_t worst_blocks);
  // Most tokens it ever reads: the last one drawn is not read.
  int64_t most_tokens() const;
  const SequenceLimits& limits() const { return limits_; }
  std::optional<SessionId> session() const { return session_; }
  bool keep_session() const { return keep_session_; }
  bool keep_failed() const { return keep_failed_; }
  bool decoding() const { return generated_ > 0; }
  // The prompt's tokens that a pass over the next `count` tokens scores. Valid until accept().
  std::span<const int32_t> scored_tokens(const KvCache& cache, int64_t count) const;
  // Hands out the scores of a pass, before its commit.
  void take_prompt_scores(std::vector<SampledToken> scores, const KvCache& cache,
                          RequestOutput& output) const;
  int64_t top_logprobs() const { return top_logprobs_; }
  int64_t pending_tokens(const KvCache& cache) const;
  // The next `count` tokens to read. Valid until accept().
  std::span<const int32_t> next_tokens(const KvCache& cache, int64_t count) const;
  // After a pass over the last token there is: whether scores are wanted, and the draw.
  bool wants_token() const { return generated_ < limits_.max_new_tokens; }

  // Draws the next token from logits [V] and puts it, its text and perhaps the end into `output`.
  // Throws what Sampler does.
  void accept(std::span<const float> logits, RequestOutput& output);
  // The prompt was read and no token is wanted.
  void finish_without_tokens(RequestOutput& output);

  // Counts of one pass; before and after its commit.
  void note_peak(const KvCache& cache);
  void note_pass(int64_t tokens, int64_t dropped_entries, double evict_seconds);
  void note_step(double seconds, bool was_decoding);
  // Lets go of the embeddings of pictures that have been read.
  void release_images(const KvCache& cache);
  // `ended`: also counts what takes a look at every entry.
  Usage usage(const KvCache& cache, bool ended = false) const;

 private:
  bool is_end(int32_t id) const;
  void flush_text(RequestOutput& output);

  RequestId id_, arrival_;
  SequenceContext context_;
  std::optional<SessionId> session_;
  bool keep_session_;
  bool keep_failed_;
  bool score_prompt_;
  int64_t top_logprobs_;
  EvictionPolicy policy_;
  SequenceLimits limits_;
  Sampler sampler_;
  StopStrings stops_;
  std::unique_ptr<TextStream> text_;
  int64_t prompt_tokens_;
  int64_t reused_tokens_;
  int64_t generated_ = 0;

  int64_t prefilled_tokens_ = 0;
  int64_t decoded_tokens_ = 0;
  double prefill_seconds_ = 0.0;
  double decode_seconds_ = 0.0;
  double evict_seconds_ = 0.0;
};

}  // namespace coppice
