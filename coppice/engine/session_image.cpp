#include "coppice/engine/session_image.h"

#include <c10/core/InferenceMode.h>

#include "coppice/core/error.h"
#include "coppice/engine/engine_state.h"

namespace coppice {
namespace {

void check_counts(const SessionImage& image, const EvictionPolicy& policy) {
  int64_t entries = 0;
  for (const int64_t length : image.cache.lengths) entries += length;
  if (entries > policy.bound_total())
    fail_argument("stored session: {} entries are above its budget of {}", entries,
                  policy.bound_total());
  if (image.evicted_entries < 0 || image.peak_entries < entries || image.peak_blocks < 0)
    fail_argument("stored session: {} entries evicted, {} at most and {} held",
                  image.evicted_entries, image.peak_entries, entries);
}

}  // namespace

SessionImage Engine::export_session(SessionId id) const {
  const c10::InferenceMode inference;
  const SequenceContext& context = state_->idle_session(id).context;
  if (!context.cache_id) fail_argument("session {} has read nothing yet", id);
  return {.tokens = context.tokens,
          .eviction = context.eviction,
          .evicted_entries = context.evicted_entries,
          .peak_entries = context.peak_entries,
          .peak_blocks = context.peak_blocks,
          .cache = state_->cache.image(*context.cache_id)};
}

SessionId Engine::import_session(const SessionImage& image) {
  const c10::InferenceMode inference;
  State& state = *state_;
  const int64_t vocab = state.model->args().vocab_size;
  for (const int32_t id : image.tokens) {
    if (id < 0 || id >= vocab)
      fail_argument("stored session: token {} is not in the vocabulary of {}", id, vocab);
  }
  if (image.cache.tokens_seen < 1 ||
      image.cache.tokens_seen > static_cast<int64_t>(image.tokens.size()))
    fail_argument("stored session: {} tokens, of which {} were read", image.tokens.size(),
                  image.cache.tokens_seen);
  const EvictionPolicy policy(image.eviction, state.cache.config());
  policy.check_gate_kind(state.gate_kind);
  check_counts(image, policy);
  int64_t needed = 0, spoken_for = state.idle_blocks();
  for (const int64_t length : image.cache.lengths) needed += blocks_for_row(length);
  for (const auto& sequence : state.running) spoken_for += sequence->limits().worst_blocks;
  if (needed > state.config.max_blocks - spoken_for)
    fail(ErrorCode::kCapacity,
         "a stored session needs {} blocks of the KV cache; {} of {} are not spoken for", needed,
         state.config.max_blocks - spoken_for, state.config.max_blocks);
  Session session;
  session.context = {.cache_id = state.cache.add_sequence(image.cache),
                     .tokens = image.tokens,
                     .images = {},
                     .eviction = policy.config(),
                     .evicted_entries = image.evicted_entries,
                     .peak_entries = image.peak_entries,
                     .peak_blocks = image.peak_blocks};
  const SessionId made = state.next_session++;
  state.sessions.emplace(made, std::move(session));
  return made;
}

}  // namespace coppice
