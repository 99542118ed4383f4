#include "coppice/cache/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"

namespace coppice {
namespace {

TEST(BlockPool, hands_out_the_lowest_free_ids) {
  BlockPool pool(6);
  std::vector<int32_t> ids;
  ASSERT_TRUE(pool.take(4, ids));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 2, 3}));
  pool.give_back(std::vector<int32_t>{2, 0});
  ids.clear();
  ASSERT_TRUE(pool.take(3, ids));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(pool.in_use(), 5);
  EXPECT_EQ(pool.peak(), 5);
}

TEST(BlockPool, a_take_that_does_not_fit_changes_nothing) {
  BlockPool pool(3);
  std::vector<int32_t> ids;
  ASSERT_TRUE(pool.take(2, ids));
  EXPECT_FALSE(pool.take(2, ids));
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_TRUE(pool.take(0, ids));
}

TEST(BlockPool, wrong_calls_are_refused) {
  EXPECT_THROW(BlockPool(-1), Error);
  EXPECT_THROW(BlockPool(int64_t{1} << 40), Error);
  BlockPool pool(3);
  std::vector<int32_t> ids;
  EXPECT_THROW((void)pool.take(-1, ids), Error);
  EXPECT_THROW(pool.give_back(std::vector<int32_t>{1}), Error);
  EXPECT_THROW(pool.give_back(std::vector<int32_t>{3}), Error);
  EXPECT_THROW(pool.give_back(std::vector<int32_t>{-1}), Error);
  EXPECT_EQ(pool.free(), 3);
}

TEST(BlockPool, random_takes_and_returns_follow_a_set) {
  Rng rng(5);
  BlockPool pool(50);
  std::set<int32_t> free, taken;
  for (int32_t i = 0; i < 50; ++i) free.insert(i);
  for (int step = 0; step < 2000; ++step) {
    if (rng.below(2) == 0) {
      const auto count = static_cast<int64_t>(rng.below(8));
      std::vector<int32_t> ids;
      ASSERT_EQ(pool.take(count, ids), count <= static_cast<int64_t>(free.size()));
      for (const int32_t id : ids) {
        ASSERT_EQ(id, *free.begin());
        free.erase(id);
        taken.insert(id);
      }
    } else if (!taken.empty()) {
      const auto it = std::next(taken.begin(), static_cast<int64_t>(rng.below(taken.size())));
      const int32_t id = *it;
      pool.give_back({&id, 1});
      taken.erase(it);
      free.insert(id);
    }
    ASSERT_EQ(pool.free(), static_cast<int64_t>(free.size()));
    ASSERT_EQ(pool.in_use(), static_cast<int64_t>(taken.size()));
  }
}

}  // namespace
}  // namespace coppice
