// One sequence read under a policy and budget, pass by pass, as serving reads it: what evaluations
// of predictions stand on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "coppice/attention/paged_backend.h"
#include "coppice/cache/kv_cache.h"
#include "coppice/core/json.h"
#include "coppice/eval/eval_task.h"
#include "coppice/eviction/policy.h"

namespace coppice {

class BoundedReader final {
 public:
  // total_tokens: read in all, at most. Throws as EvictionPolicy, and kInvalidArgument for a policy
  // that needs a gate which the model lacks.
  BoundedReader(const EvalModel& model, const EvictionConfig& eviction, int64_t total_tokens);
  BoundedReader(const BoundedReader&) = delete;
  BoundedReader& operator=(const BoundedReader&) = delete;

  // Reads a pass of 1 to chunk_tokens tokens and evicts. -> hidden states [T, C], as they were
  // before the eviction.
  at::Tensor read(std::span<const int32_t> ids);

  // "kept_entries", "evicted_entries", "peak_entries", "bytes_peak", "bytes_bound"
  Json usage() const;

 private:
  EvalModel model_;
  KvCache cache_;
  PagedBackend backend_;
  EvictionPolicy policy_;
  SequenceId sequence_;
  int64_t evicted_entries_ = 0;
  int64_t peak_entries_ = 0;
};

}  // namespace coppice
