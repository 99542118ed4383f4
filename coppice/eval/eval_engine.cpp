#include "coppice/eval/eval_engine.h"

#include "coppice/models/model.h"

namespace coppice {

CacheConfig eval_cache(const EvalModel& model, const EvictionConfig& eviction,
                       int64_t total_tokens) {
  CacheConfig config = cache_config(model.model->args(), model.kv_dtype, c10::Device(c10::kCPU));
  config.max_blocks = worst_case_blocks(config, eviction, model.chunk_tokens, total_tokens);
  return config;
}

EngineConfig eval_engine(const EvalModel& model, const EvictionConfig& eviction,
                         int64_t total_tokens) {
  EngineConfig config;
  config.eviction = eviction;
  config.chunk_tokens = model.chunk_tokens;
  config.kv_dtype = model.kv_dtype;
  config.max_blocks = eval_cache(model, eviction, total_tokens).max_blocks;
  return config;
}

}  // namespace coppice
