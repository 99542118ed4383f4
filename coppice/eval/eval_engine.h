// Engines of evaluations, sized for the one request they run at a time.
#pragma once

#include "coppice/engine/engine.h"
#include "coppice/eval/eval_task.h"

namespace coppice {

// The cache holds what one sequence of at most `total_tokens` may come to under `eviction`. Throws
// as worst_case_blocks.
CacheConfig eval_cache(const EvalModel& model, const EvictionConfig& eviction,
                       int64_t total_tokens);
EngineConfig eval_engine(const EvalModel& model, const EvictionConfig& eviction,
                         int64_t total_tokens);

}  // namespace coppice
