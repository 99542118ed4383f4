// From a budget to the bytes that bound it, and back.
//
// Between passes a sequence holds at most budget x rows entries; during a pass, one entry per row
// more for each of its new tokens. Those entries may be spread over the rows in any way, so each
// row may waste most of a block: the bound counts that.
#pragma once

#include <cstdint>

#include "coppice/cache/cache_config.h"

namespace coppice {

struct MemoryPlan {
  int64_t budget_entries = 0;  // mean per row, after a pass
  int64_t pass_tokens = 0;     // most new tokens of one pass, over all its sequences
  int64_t sequences = 0;       // most at once, forks included
  int64_t peak_entries = 0;    // over all rows and sequences, during a pass
  int64_t max_blocks = 0;      // for CacheConfig
  int64_t kv_bytes = 0;        // max_blocks x block_bytes: the bound
  int64_t table_bytes = 0;     // host bookkeeping beside it, at most

  int64_t total_bytes() const { return kv_bytes + table_bytes; }
};

// `cache` gives the sizes; its max_blocks is not read. Throws kInvalidArgument for numbers below 1,
// kCapacity where the bound is past what a cache can address.
MemoryPlan plan_memory(const CacheConfig& cache, int64_t budget_entries, int64_t pass_tokens,
                       int64_t sequences = 1);

// Blocks of a pool which, with its tables for that many sequences, stays within `bytes`; 0 or less
// where the tables alone do not.
int64_t blocks_within(const CacheConfig& cache, int64_t bytes, int64_t sequences);

// The largest budget whose total_bytes() is at most `bytes`. Throws kCapacity, with the bytes that
// would do, where not even `least_budget` fits.
MemoryPlan plan_within(const CacheConfig& cache, int64_t bytes, int64_t pass_tokens,
                       int64_t sequences = 1, int64_t least_budget = 1);

}  // namespace coppice
