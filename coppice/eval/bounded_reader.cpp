#include "coppice/eval/bounded_reader.h"

#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/engine/pass.h"
#include "coppice/eval/eval_engine.h"
#include "coppice/models/load.h"
#include "coppice/models/model.h"

namespace coppice {
BoundedReader::BoundedReader(const EvalModel& model, const EvictionConfig& eviction,
                             int64_t total_tokens)
    : model_(model),
      cache_(eval_cache(model, eviction, total_tokens)),
      backend_(cache_),
      policy_(eviction, cache_.config()),
      sequence_(cache_.add_sequence()) {
  policy_.check_gate_kind(model.model->gate_kind());
}

at::Tensor BoundedReader::read(std::span<const int32_t> ids) {
  const PassPart part{.sequence = sequence_, .tokens = ids, .policy = &policy_};
  at::Tensor hidden = forward_pass(*model_.model, backend_, cache_, std::span(&part, 1));
  peak_entries_ = std::max(peak_entries_, cache_.entries(sequence_));
  evicted_entries_ += commit_pass(cache_, part);
  return hidden;
}

Json BoundedReader::usage() const {
  return {{"kept_entries", cache_.entries(sequence_)},
          {"evicted_entries", evicted_entries_},
          {"peak_entries", peak_entries_},
          {"bytes_peak", cache_.peak_bytes()},
          {"bytes_bound", cache_.bytes_bound()}};
}

}  // namespace coppice
