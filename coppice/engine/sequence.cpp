#include "coppice/engine/sequence.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "coppice/core/error.h"
#include "coppice/nn/batch.h"

namespace coppice {

int64_t blocks_of(const KvCache& cache, SequenceId sequence) {
  int64_t blocks = 0;
  for (const BlockTable& row : cache.rows(sequence)) {
    blocks += static_cast<int64_t>(row.blocks.size());
  }
  return blocks;
}

Sequence::Sequence(RequestId id, const Request& request, SequenceContext context,
                   int64_t reused_tokens, EvictionPolicy policy, const SequenceLimits& limits,
                   std::unique_ptr<TextStream> text)
    : id_(id),
      arrival_(request.in_place_of.value_or(id)),
      context_(std::move(context)),
      session_(request.session),
      keep_session_(request.keep_session),
      keep_failed_(request.keep_session && request.keep_failed),
      score_prompt_(request.score_prompt),
      top_logprobs_(request.sampling.logprobs.value_or(0)),
      policy_(std::move(policy)),
      limits_(limits),
      sampler_(request.sampling, limits.vocab_size),
      stops_(request.sampling.stop),
      text_(std::move(text)),
      prompt_tokens_(context_.num_tokens()),
      reused_tokens_(reused_tokens) {
  sampler_.note_prompt(context_.tokens);
}

void Sequence::change_policy(EvictionPolicy policy, int64_t worst_blocks) {
  policy_ = std::move(policy);
  context_.eviction = policy_.config();
  limits_.worst_blocks = worst_blocks;
}

int64_t Sequence::most_tokens() const {
  return prompt_tokens_ + std::max<int64_t>(0, limits_.max_new_tokens - 1);
}

int64_t Sequence::pending_tokens(const KvCache& cache) const {
  const int64_t read = context_.cache_id ? cache.tokens_seen(*context_.cache_id) : 0;
  return context_.num_tokens() - read;
}

std::span<const int32_t> Sequence::next_tokens(const KvCache& cache, int64_t count) const {
  const std::span<const int32_t> all(context_.tokens);
  return all.last(static_cast<std::size_t>(pending_tokens(cache)))
      .first(static_cast<std::size_t>(count));
}

std::span<const int32_t> Sequence::scored_tokens(const KvCache& cache, int64_t count) const {
  if (!score_prompt_ || decoding()) return {};
  const std::span<const int32_t> following =
      std::span(context_.tokens).last(static_cast<std::size_t>(pending_tokens(cache) - 1));
  return following.first(std::min(following.size(), static_cast<std::size_t>(count)));
}

void Sequence::take_prompt_scores(std::vector<SampledToken> scores, const KvCache& cache,
                                  RequestOutput& output) const {
  if (!score_prompt_ || decoding()) return;
  const int64_t read = context_.num_tokens() - pending_tokens(cache);
  if (read == reused_tokens_) {  // the first pass
    output.prompt_scores.push_back({.id = context_.tokens[static_cast<std::size_t>(read)],
                                    .logprob = std::numeric_limits<float>::quiet_NaN(),
                                    .top = {}});
  }
  std::move(scores.begin(), scores.end(), std::back_inserter(output.prompt_scores));
}

bool Sequence::is_end(int32_t id) const {
  return std::find(limits_.end_token_ids.begin(), limits_.end_token_ids.end(), id) !=
         limits_.end_token_ids.end();
}

void Sequence::accept(std::span<const float> logits, RequestOutput& output) {
  const SampledToken token = sampler_.sample(logits);
  context_.tokens.push_back(token.id);
  ++generated_;
  output.tokens.push_back(token);
  if (is_end(token.id)) {
    output.finish_reason = FinishReason::kStop;
  } else if (text_) {
    output.text += stops_.push(text_->push(token.id));
    if (stops_.stopped()) output.finish_reason = FinishReason::kStop;
  }
  if (!output.finished() && generated_ == limits_.max_new_tokens) {
    output.finish_reason = FinishReason::kLength;
  }
  if (output.finished()) flush_text(output);
}

void Sequence::finish_without_tokens(RequestOutput& output) {
  output.finish_reason = FinishReason::kLength;
}

// The end of the text: half a character, then the half of a stop that never came.
void Sequence::flush_text(RequestOutput& output) {
  if (!text_) return;
  output.text += stops_.push(text_->finish());
  output.text += stops_.finish();
  if (stops_.stopped()) output.finish_reason = FinishReason::kStop;
}

void Sequence::note_peak(const KvCache& cache) {
  context_.peak_entries = std::max(context_.peak_entries, cache.entries(*context_.cache_id));
  context_.peak_blocks = std::max(context_.peak_blocks, blocks_of(cache, *context_.cache_id));
}

void Sequence::note_pass(int64_t tokens, int64_t dropped_entries, double evict_seconds) {
  (decoding() ? decoded_tokens_ : prefilled_tokens_) += tokens;
  context_.evicted_entries += dropped_entries;
  evict_seconds_ += evict_seconds;
}

void Sequence::note_step(double seconds, bool was_decoding) {
  (was_decoding ? decode_seconds_ : prefill_seconds_) += seconds;
}

void Sequence::release_images(const KvCache& cache) {
  const int64_t read = cache.tokens_seen(*context_.cache_id);
  for (ImageSpan& span : context_.images)
    if (span.end() <= read) span.embeddings = at::Tensor();
}

Usage Sequence::usage(const KvCache& cache, bool ended) const {
  const auto rate = [](double amount, double of) { return of > 0 ? amount / of : 0.0; };
  Usage usage;
  usage.tokens = {prompt_tokens_, generated_, reused_tokens_};
  usage.kv.policy = policy_.name();
  if (policy_.bounded()) usage.kv.budget_entries = policy_.budget_total();
  if (context_.cache_id) usage.kv.kept_entries = cache.entries(*context_.cache_id);
  if (ended && context_.cache_id && !context_.images.empty())
    usage.kv.kept_image_entries =
        cache.entries_of(*context_.cache_id, static_cast<uint8_t>(Modality::kImage));
  usage.kv.evicted_entries = context_.evicted_entries;
  usage.kv.peak_entries = context_.peak_entries;
  usage.kv.bytes_bound = cache.bytes_bound();
  usage.kv.bytes_peak = context_.peak_blocks * cache.config().block_bytes();
  usage.timing.prefill_tokens_per_s =
      rate(static_cast<double>(prefilled_tokens_), prefill_seconds_);
  usage.timing.decode_tokens_per_s = rate(static_cast<double>(decoded_tokens_), decode_seconds_);
  usage.timing.evict_share = rate(evict_seconds_, prefill_seconds_ + decode_seconds_);
  return usage;
}

}  // namespace coppice
