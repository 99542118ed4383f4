// A kept session outside the engine: its tokens, its cache, its counts. What a file stores.
#pragma once

#include <cstdint>
#include <vector>

#include "coppice/cache/kv_cache.h"
#include "coppice/eviction/policy.h"

namespace coppice {

struct SessionImage {
  std::vector<int32_t> tokens;
  EvictionConfig eviction;  // nothing in it is unset
  int64_t evicted_entries = 0;
  int64_t peak_entries = 0;
  int64_t peak_blocks = 0;
  KvCache::SequenceImage cache;
};

}  // namespace coppice
