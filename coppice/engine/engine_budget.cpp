// Other eviction settings for a request on its way.
#include <c10/core/InferenceMode.h>

#include "coppice/core/error.h"
#include "coppice/engine/engine_state.h"

namespace coppice {

Sequence* Engine::State::find_waiting(RequestId id) const {
  for (const auto& sequence : waiting) {
    if (sequence->id() == id) return sequence.get();
  }
  return nullptr;
}

void Engine::change_eviction(RequestId id, const EvictionConfig& eviction) {
  const c10::InferenceMode inference;
  State& state = *state_;
  const bool runs = state.find_running(id) != nullptr;
  Sequence* sequence = runs ? state.find_running(id) : state.find_waiting(id);
  if (sequence == nullptr) fail(ErrorCode::kNotFound, "there is no request {} to change", id);
  EvictionPolicy policy(eviction, state.cache.config());
  const EvictionConfig& old = sequence->policy().config();
  if (!same_policy(policy.config(), old) || policy.config().pins != old.pins)
    fail_argument(
        "a request keeps its eviction policy ({}) and its pins; only the budget may change",
        old.policy);
  const int64_t worst = worst_case_blocks(state.cache.config(), policy.config(),
                                          sequence->limits().chunk_tokens, sequence->most_tokens());
  int64_t spoken_for = 0;
  if (runs) {
    spoken_for = state.idle_blocks();
    for (const auto& other : state.running)
      if (other.get() != sequence) spoken_for += other->limits().worst_blocks;
  }
  if (worst > state.config.max_blocks - spoken_for)
    fail(ErrorCode::kCapacity,
         "request {} may need {} blocks of the KV cache then; {} of {} are not spoken for", id,
         worst, state.config.max_blocks - spoken_for, state.config.max_blocks);
  state.leave_chunk(*sequence);
  sequence->change_policy(std::move(policy), worst);
  SequenceContext& context = sequence->context();
  if (context.cache_id)
    context.evicted_entries += sequence->policy().evict(state.cache, *context.cache_id);
}

}  // namespace coppice
