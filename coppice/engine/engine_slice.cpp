// A chunk of a prompt that is read some layers at a time, between the steps of answers.
#include <algorithm>
#include <span>

#include "coppice/engine/engine_state.h"

namespace coppice {

// The part that came to its end, good or bad; none while layers are left.
std::optional<StepPart> Engine::State::run_slice(const StepSlice& slice) {
  StepPart part = step_part(*find_running(slice.id), slice.tokens);
  const std::span<StepPart> parts(&part, 1);
  try {
    if (!open_chunk) {
      make_positions(parts);
      open_chunk.emplace(*model, backend, cache, std::vector{pass_part(cache, part)});
    }
    const int64_t layers = model->args().num_hidden_layers * slice.work / slice.tokens;
    if (!open_chunk->advance(std::max<int64_t>(1, layers))) return std::nullopt;
    read_scores(parts, open_chunk->finish());
    complete(part);
  } catch (...) {
    fail_part(part);
  }
  open_chunk.reset();
  return part;
}

// What was read of a chunk of `sequence` is read again.
void Engine::State::leave_chunk(const Sequence& sequence) {
  const auto& id = sequence.context().cache_id;
  if (id && cache.tokens_in_pass(*id) > 0) open_chunk.reset();
}

}  // namespace coppice
