#include "coppice/cache/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "coppice/cache/block_table.h"
#include "coppice/core/error.h"
#include "coppice/core/rng.h"

namespace coppice {
namespace {

CacheConfig smollm() {
  return {.num_layers = 30, .num_kv_heads = 3, .head_dim = 64, .dtype = at::kHalf};
}

TEST(MemoryPlan, block_counts_hold_for_the_worst_spread_and_no_more) {
  // All spreads of few entries over few rows.
  for (int64_t rows = 1; rows <= 3; ++rows) {
    for (int64_t entries = 0; entries <= 70; ++entries) {
      int64_t worst = 0;
      for (int64_t a = 0; a <= entries; ++a) {
        for (int64_t b = 0; b <= entries - a; ++b) {
          const int64_t c = entries - a - b;
          if ((rows < 3 && c > 0) || (rows < 2 && b > 0)) continue;
          worst = std::max(worst, blocks_for_row(a) + blocks_for_row(b) + blocks_for_row(c));
        }
      }
      EXPECT_EQ(blocks_for_entries(entries, rows), worst) << entries << " in " << rows;
    }
  }
}

TEST(MemoryPlan, counts_waste_and_the_pass) {
  const MemoryPlan plan = plan_memory(smollm(), 256, 32);
  EXPECT_EQ(plan.peak_entries, (256 + 32) * 90);
  EXPECT_EQ(plan.max_blocks, blocks_for_entries((256 + 32) * 90, 90));
  EXPECT_EQ(plan.kv_bytes, plan.max_blocks * 16 * (2 * 64 * 2 + 13));
  EXPECT_LT(plan.table_bytes, plan.kv_bytes / 100);
}

TEST(MemoryPlan, the_inverse_is_the_largest_that_fits) {
  Rng rng(3);
  for (int i = 0; i < 300; ++i) {
    const auto bytes = static_cast<int64_t>(2'000'000 + rng.below(500'000'000));
    const auto tokens = static_cast<int64_t>(1 + rng.below(40));
    const auto sequences = static_cast<int64_t>(1 + rng.below(4));
    const MemoryPlan plan = plan_within(smollm(), bytes, tokens, sequences);
    EXPECT_LE(plan.total_bytes(), bytes);
    EXPECT_GT(plan_memory(smollm(), plan.budget_entries + 1, tokens, sequences).total_bytes(),
              bytes);
  }
}

TEST(MemoryPlan, K08_K26_too_few_bytes_are_refused_with_the_number_that_would_do) {
  const int64_t least = plan_memory(smollm(), 1, 32).total_bytes();
  EXPECT_EQ(plan_within(smollm(), least, 32).budget_entries, 1);
  for (const int64_t bytes : {int64_t{-1}, int64_t{0}, int64_t{1024}, least - 1}) {
    try {
      plan_within(smollm(), bytes, 32);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCapacity);
      EXPECT_NE(std::string(error.what()).find(std::to_string(least)), std::string::npos);
    }
  }
  EXPECT_THROW(plan_within(smollm(), least, 32, 1, 5), Error);
}

TEST(MemoryPlan, nonsense_and_sizes_that_wrap_are_refused) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(plan_memory(smollm(), 0, 32), Error);
  EXPECT_THROW(plan_memory(smollm(), 256, 0), Error);
  EXPECT_THROW(plan_memory(smollm(), 256, 32, 0), Error);
  EXPECT_THROW(plan_memory(smollm(), kHuge, 32), Error);
  EXPECT_THROW(plan_memory(smollm(), 256, kHuge), Error);
  EXPECT_THROW(plan_memory(smollm(), 256, 32, kHuge), Error);
  EXPECT_THROW(plan_memory(smollm(), int64_t{1} << 32, int64_t{1} << 32, int64_t{1} << 32), Error);
  EXPECT_GT(plan_within(smollm(), kHuge, 32).budget_entries, 100'000'000);
  CacheConfig none = smollm();
  none.num_layers = 0;
  EXPECT_THROW(plan_memory(none, 256, 32), Error);
}

}  // namespace
}  // namespace coppice
