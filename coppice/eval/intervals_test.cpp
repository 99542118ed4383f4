#include "coppice/eval/intervals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace coppice {
namespace {

// Worked by hand: z = 1.96, n = 10, p = 0.8: (0.8 + 0.19207 -+ 1.96 sqrt(0.016 + 0.0096036)) /
// 1.384146 = (0.99207 -+ 0.31362) / 1.384146.
TEST(Intervals, wilson_by_hand) {
  const Interval eight = wilson_interval(8, 10);
  EXPECT_NEAR(eight.low, 0.4902, 1e-4);
  EXPECT_NEAR(eight.high, 0.9433, 1e-4);
  // p = 0: from 0 to z^2 / (n + z^2) = 3.8415 / 13.8415.
  const Interval none = wilson_interval(0, 10);
  EXPECT_EQ(none.low, 0.0);
  EXPECT_NEAR(none.high, 0.27753, 1e-5);
  const Interval all = wilson_interval(10, 10);
  EXPECT_NEAR(all.low, 1 - 0.27753, 1e-5);
  EXPECT_DOUBLE_EQ(all.high, 1.0);
}

double mean_of(std::span<const int64_t> weights, const std::vector<double>& values) {
  double sum = 0.0, count = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += static_cast<double>(weights[i]) * values[i];
    count += static_cast<double>(weights[i]);
  }
  return sum / count;
}

// Two items 0 and 1: a draw has mean 0, 1/2, 1 with chances 1/4, 1/2, 1/4, so both ends are
// reached.
TEST(Intervals, bootstrap_of_two_items_reaches_both) {
  const std::vector<double> values = {0.0, 1.0};
  int64_t counts[3] = {};
  const auto interval = bootstrap_interval(2,
                                           [&](std::span<const int64_t> weights) {
                                             EXPECT_EQ(weights[0] + weights[1], 2);
                                             ++counts[weights[1]];
                                             return mean_of(weights, values);
                                           },
                                           {.rounds = 4000, .seed = 3});
  ASSERT_TRUE(interval);
  EXPECT_EQ(interval->low, 0.0);
  EXPECT_EQ(interval->high, 1.0);
  EXPECT_NEAR(static_cast<double>(counts[0]), 1000, 140);  // five standard deviations
  EXPECT_NEAR(static_cast<double>(counts[1]), 2000, 160);
  EXPECT_NEAR(static_cast<double>(counts[2]), 1000, 140);
}

// A mean of 400 values of variance 1/12: the normal interval is the mean -+ 1.96 sqrt(1/12/400).
TEST(Intervals, bootstrap_agrees_with_the_normal_interval_and_is_seeded) {
  std::vector<double> values(400);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) / 400.0;
  const auto run = [&](uint64_t seed) {
    return *bootstrap_interval(
        400, [&](std::span<const int64_t> weights) { return mean_of(weights, values); },
        {.rounds = 2000, .seed = seed});
  };
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / 400;
  const double reach = 1.96 * std::sqrt(1.0 / 12 / 400);
  const Interval one = run(1), again = run(1), other = run(2);
  EXPECT_NEAR(one.low, mean - reach, 0.004);
  EXPECT_NEAR(one.high, mean + reach, 0.004);
  EXPECT_EQ(one.low, again.low);
  EXPECT_EQ(one.high, again.high);
  EXPECT_NE(one.low, other.low);
}

TEST(Intervals, a_ratio_that_is_the_same_for_every_item_has_no_width) {
  const std::vector<double> ours = {2, 4, 9}, theirs = {1, 2, 4.5};
  const auto interval =
      bootstrap_interval(3,
                         [&](std::span<const int64_t> weights) {
                           return mean_of(weights, ours) / mean_of(weights, theirs);
                         },
                         {.rounds = 100, .seed = 0});
  EXPECT_DOUBLE_EQ(interval->low, 2.0);
  EXPECT_DOUBLE_EQ(interval->high, 2.0);
}

TEST(Intervals, what_cannot_be_known_is_not_told) {
  const auto one = [](std::span<const int64_t>) { return 1.0; };
  EXPECT_FALSE(bootstrap_interval(0, one, {}));
  EXPECT_FALSE(bootstrap_interval(1, one, {}));
  EXPECT_FALSE(bootstrap_interval(5, [](std::span<const int64_t>) { return NAN; }, {}));
  // A share of nothing in some rounds: those are left out.
  const auto some = [](std::span<const int64_t> weights) {
    return weights[0] == 0 ? NAN : 1.0 / static_cast<double>(weights[0]);
  };
  ASSERT_TRUE(bootstrap_interval(3, some, {}));
  EXPECT_LE(bootstrap_interval(3, some, {})->high, 1.0);
}

}  // namespace
}  // namespace coppice
