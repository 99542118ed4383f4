#include "coppice/cache/memory_plan.h"

#include <limits>
#include <optional>

#include "coppice/cache/block_table.h"
#include "coppice/core/error.h"

namespace coppice {
namespace {

constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();

void check_positive(const char* what, int64_t value) {
  if (value < 1) fail_argument("KV plan: {} must be at least 1, got {}", what, value);
}

// Row tables and the free list hold 4 bytes per block, and a vector may hold twice what it uses.
int64_t row_table_bytes(const CacheConfig& cache, int64_t sequences) {
  return cache.num_rows() * sequences * static_cast<int64_t>(sizeof(BlockTable));
}
int64_t block_list_bytes(int64_t blocks) { return blocks * 16 + blocks / 8; }

// Nothing where a cache cannot address that much.
std::optional<MemoryPlan> try_plan(const CacheConfig& cache, int64_t budget, int64_t pass_tokens,
                                   int64_t sequences) {
  const int64_t most_entries = kMaxBlocks * kBlockEntries;
  const int64_t rows = cache.num_rows();
  if (sequences > most_entries / rows || budget > most_entries / rows / sequences ||
      pass_tokens > most_entries / rows)
    return std::nullopt;
  MemoryPlan plan{.budget_entries = budget, .pass_tokens = pass_tokens, .sequences = sequences};
  plan.peak_entries = budget * rows * sequences + pass_tokens * rows;
  plan.max_blocks = blocks_for_entries(plan.peak_entries, rows * sequences);
  if (plan.max_blocks > kMaxBlocks ||
      cache.block_bytes() > std::numeric_limits<int64_t>::max() / 2 / plan.max_blocks)
    return std::nullopt;
  plan.kv_bytes = plan.max_blocks * cache.block_bytes();
  plan.table_bytes = row_table_bytes(cache, sequences) + block_list_bytes(plan.max_blocks);
  return plan;
}

}  // namespace

MemoryPlan plan_memory(const CacheConfig& cache, int64_t budget_entries, int64_t pass_tokens,
                       int64_t sequences) {
  validate(cache, /*with_blocks=*/false);
  check_positive("budget", budget_entries);
  check_positive("tokens of a pass", pass_tokens);
  check_positive("sequences", sequences);
  const auto plan = try_plan(cache, budget_entries, pass_tokens, sequences);
  if (!plan)
    fail(ErrorCode::kCapacity,
         "KV plan: a budget of {} entries, passes of {} tokens and {} sequences need more than the "
         "{} blocks a cache can have",
         budget_entries, pass_tokens, sequences, kMaxBlocks);
  return *plan;
}

int64_t blocks_within(const CacheConfig& cache, int64_t bytes, int64_t sequences) {
  const int64_t per_block = cache.block_bytes() + (block_list_bytes(8) + 7) / 8;
  return (bytes - row_table_bytes(cache, sequences)) / per_block;
}

MemoryPlan plan_within(const CacheConfig& cache, int64_t bytes, int64_t pass_tokens,
                       int64_t sequences, int64_t least_budget) {
  MemoryPlan best = plan_memory(cache, least_budget, pass_tokens, sequences);
  if (best.total_bytes() > bytes)
    fail(ErrorCode::kCapacity,
         "KV plan: {} bytes cannot hold {} sequences of {} entries per KV head and passes of {} "
         "tokens; at least {} bytes are needed, or shorter passes",
         bytes, sequences, least_budget, pass_tokens, best.total_bytes());
  int64_t low = least_budget, high = kMaxBlocks * kBlockEntries;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const auto plan = try_plan(cache, middle, pass_tokens, sequences);
    if (plan && plan->total_bytes() <= bytes) {
      best = *plan;
      low = middle;
    } else {
      high = middle;
    }
  }
  return best;
}

}  // namespace coppice
