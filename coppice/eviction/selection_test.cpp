#include "coppice/eviction/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"

namespace coppice {
namespace {

TEST(ScoreRank, keeps_the_order_of_floats) {
  const float inf = std::numeric_limits<float>::infinity();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float rising[] = {-inf, -3e38f, -1.5f, -1.0f, -tiny, 0.0f, tiny, 1.0f, 3e38f, inf};
  for (std::size_t i = 1; i < std::size(rising); ++i)
    EXPECT_LT(score_rank(rising[i - 1]), score_rank(rising[i]));
  EXPECT_EQ(score_rank(-0.0f), score_rank(0.0f));
  EXPECT_LT(score_rank(inf), kProtectedRank);
  for (const float sign : {1.0f, -1.0f})
    EXPECT_LT(score_rank(std::copysign(std::nanf(""), sign)), score_rank(-inf));
}

// The sorted truth: worth by rank, newer position, lower row.
std::vector<int64_t> sorted_lowest(const RankedRows& rows, int64_t count) {
  std::vector<std::tuple<int32_t, int32_t, int64_t, int64_t>> all;
  for (std::size_t r = 0; r + 1 < rows.offsets.size(); ++r)
    for (int64_t i = rows.offsets[r]; i < rows.offsets[r + 1]; ++i)
      all.emplace_back(rows.ranks[static_cast<std::size_t>(i)],
                       rows.positions[static_cast<std::size_t>(i)], -static_cast<int64_t>(r), i);
  std::sort(all.begin(), all.end());
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i)
    result.push_back(std::get<3>(all[static_cast<std::size_t>(i)]));
  std::sort(result.begin(), result.end());
  return result;
}

TEST(Selector, equals_a_full_sort) {
  Rng rng(1);
  Selector selector;
  for (int round = 0; round < 400; ++round) {
    std::vector<int32_t> ranks, positions;
    std::vector<int64_t> offsets = {0};
    const uint64_t rows = 1 + rng.below(12);
    const uint64_t longest = round % 4 == 0 ? 600 : 60;
    // From all different to all equal.
    const uint64_t values = std::vector<uint64_t>{1, 2, 30, uint64_t{1} << 32}[rng.below(4)];
    for (uint64_t r = 0; r < rows; ++r) {
      const uint64_t length = rng.below(longest);
      const auto shift = static_cast<int32_t>(rng.below(5));
      for (uint64_t i = 0; i < length; ++i) {
        ranks.push_back(rng.below(9) == 0
                            ? kProtectedRank
                            : static_cast<int32_t>(static_cast<uint32_t>(rng.below(values))));
        positions.push_back(static_cast<int32_t>(length - i) + shift);
      }
      offsets.push_back(static_cast<int64_t>(ranks.size()));
    }
    const RankedRows all{ranks, positions, offsets};
    for (const int64_t count :
         {int64_t{0}, int64_t{1}, static_cast<int64_t>(rng.below(ranks.size() + 1)),
          static_cast<int64_t>(ranks.size())}) {
      if (count > static_cast<int64_t>(ranks.size())) continue;
      const auto got = selector.lowest(all, count);
      ASSERT_EQ(std::vector<int64_t>(got.begin(), got.end()), sorted_lowest(all, count));
    }
  }
}

TEST(Selector, a_sample_that_misleads_is_made_good) {
  // Every sampled place is high, all others low: the first guess finds too few or too many.
  const int64_t total = 20000;
  std::vector<int32_t> ranks(total), positions(total);
  for (int64_t low = 0; low < 2; ++low) {
    for (int64_t i = 0; i < total; ++i) {
      ranks[static_cast<std::size_t>(i)] = static_cast<int32_t>(i % 7919);
      positions[static_cast<std::size_t>(i)] = static_cast<int32_t>(total - i);
    }
    for (int64_t i = 0; i < 1024; ++i)
      ranks[static_cast<std::size_t>(i * total / 1024)] = low == 0 ? 1 << 30 : -(1 << 30);
    const std::vector<int64_t> offsets = {0, total};
    Selector selector;
    for (const int64_t count : {1, 90, 700, 5000}) {
      const auto got = selector.lowest({ranks, positions, offsets}, count);
      ASSERT_EQ(std::vector<int64_t>(got.begin(), got.end()),
                sorted_lowest({ranks, positions, offsets}, count));
    }
  }
}

TEST(Selector, more_than_there_is_is_refused) {
  Selector selector;
  const std::vector<int32_t> one = {1};
  const std::vector<int64_t> offsets = {0, 1};
  EXPECT_THROW(selector.lowest({one, one, offsets}, 2), Error);
  EXPECT_THROW(selector.lowest({one, one, offsets}, -1), Error);
}

}  // namespace
}  // namespace coppice
