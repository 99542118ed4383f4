#include "coppice/eviction/scorers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace coppice {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float score_one(const Scorer& scorer, float log_beta, int64_t position, int64_t newest) {
  const ScoreForm form = scorer.form();
  const float slope = form.slope_is_log_beta ? log_beta : form.slope;
  return (static_cast<float>(newest - position) + form.age_offset) * slope +
         form.aux_weight * scorer.aux({.log_beta = log_beta});
}

TEST(Retention, score_is_the_log_of_the_sum) {
  for (const int64_t n : {1, 2, 3, 8}) {
    const auto scorer = make_retention_scorer(n, false);
    for (const float lb : {-1e-7f, -1e-3f, -0.1f, -0.7f, -3.0f, -9.0f}) {
      for (const int64_t age : {0, 1, 5, 60}) {
        long double sum = 0;
        for (int64_t s = 1; s <= n; ++s)
          sum += std::exp(static_cast<long double>(lb) * static_cast<long double>(age + s));
        EXPECT_NEAR(score_one(*scorer, lb, 100 - age, 100), static_cast<double>(std::log(sum)),
                    1e-6 * (1 + std::abs(static_cast<double>(lb)) * static_cast<double>(age + 1)))
            << n << " " << lb << " " << age;
      }
    }
  }
}

TEST(Retention, parity_ages_are_one_or_two_steps_more) {
  // n = 1: (seen + 1 - i) lb; n = 2: (seen + 2 - i) lb + log1p(e^lb), seen = newest + 1.
  const float lb = -0.25f;
  EXPECT_FLOAT_EQ(score_one(*make_retention_scorer(1, true), lb, 90, 100), (101 + 1 - 90) * lb);
  EXPECT_FLOAT_EQ(score_one(*make_retention_scorer(2, true), lb, 90, 100),
                  (101 + 2 - 90) * lb + std::log1p(std::exp(lb)));
}

TEST(Retention, K31_beta_one_has_its_limit) {
  EXPECT_EQ(retention_tail(0.0f, 1), 0.0f);
  EXPECT_EQ(retention_tail(-0.0f, 5), std::log(5.0f));
  EXPECT_NEAR(retention_tail(-1e-30f, 5), std::log(5.0f), 1e-6);
  EXPECT_NEAR(retention_tail(-std::numeric_limits<float>::denorm_min(), 2), std::log(2.0f), 1e-6);
  for (const int64_t n : {1, 2, 7})
    EXPECT_EQ(score_one(*make_retention_scorer(n, false), 0.0f, 0, 1'000'000),
              std::log(static_cast<float>(n)));
}

TEST(Retention, K30_extremes_are_ordered_and_no_nan) {
  for (const int64_t n : {1, 2, 64}) {
    for (const bool parity : {false, true}) {
      const auto scorer = make_retention_scorer(n, parity);
      // log beta -20: probabilities underflow after a few steps, the order by age does not.
      float previous = kInf;
      for (const int64_t age : {0, 1, 10, 10'000, 999'999, 1'000'000}) {
        const float score = score_one(*scorer, -20.0f, 1'000'000 - age, 1'000'000);
        EXPECT_LT(score, previous);
        EXPECT_TRUE(std::isfinite(score));
        previous = score;
      }
      for (const float lb : {0.0f, -1e-40f, -1e-8f, -88.0f, -1e4f, -1e30f, -kInf})
        for (const int64_t age : {0, 1, 10'000, 1'000'000, 2'000'000'000})
          EXPECT_FALSE(std::isnan(score_one(*scorer, lb, 2'000'000'000 - age, 2'000'000'000)))
              << lb << " " << age;
    }
  }
  EXPECT_EQ(retention_tail(-kInf, 8), 0.0f);
}

// Worked examples: (z, age) and the score of one step ahead, beta = logistic(z).
TEST(Retention, worked_order_of_four_entries) {
  const auto scorer = make_retention_scorer(1, false);
  const double z[] = {8, 5, 3, 6};
  const int64_t ages[] = {2000, 100, 10, 500};
  const double expected[] = {-.670813, -.671535, -.485874, -1.237843};
  for (int i = 0; i < 4; ++i) {
    const auto lb = static_cast<float>(-std::log1p(std::exp(-z[i])));
    EXPECT_NEAR(score_one(*scorer, lb, 5000 - ages[i] + 1, 5000), expected[i], 1e-5);
  }
}

TEST(Knorm, aux_is_the_norm) {
  const auto scorer = make_knorm_scorer();
  const std::vector<float> key = {3, 4, 12};
  const float norm = scorer->aux({.key = key});
  EXPECT_EQ(norm, 13.0f);
  const auto norm_of = [&](const std::vector<float>& one) { return scorer->aux({.key = one}); };
  // Close norms tie on purpose; what is farther apart does not.
  EXPECT_EQ(norm_of({1.000001f}), norm_of({1.0f}));
  EXPECT_GT(norm_of({1.0005f}), norm_of({1.0f}));
  EXPECT_NEAR(norm_of({7.7f}), 7.7f, 7.7f / 8192);
}

TEST(Random, a_number_of_the_place_alone_and_evenly_spread) {
  const auto scorer = make_random_scorer(7), again = make_random_scorer(7);
  const auto other = make_random_scorer(8);
  EXPECT_TRUE(scorer->needs().gate.empty() && !scorer->needs().key_norm);
  double sum = 0.0;
  int below[10] = {};
  constexpr int kPositions = 20'000;
  for (int64_t position = 0; position < kPositions; ++position) {
    const ScoredEntry entry{.layer = 3, .head = 1, .position = position, .log_beta = -1.0f};
    const float score = scorer->aux(entry);
    ASSERT_GE(score, 0.0f);
    ASSERT_LT(score, 1.0f);
    ASSERT_EQ(score, again->aux({.layer = 3, .head = 1, .position = position}));
    ASSERT_NE(score, other->aux(entry));
    ASSERT_NE(score, scorer->aux({.layer = 1, .head = 3, .position = position}));
    sum += score;
    ++below[static_cast<int>(score * 10)];
  }
  EXPECT_NEAR(sum / kPositions, 0.5, 0.01);  // five standard deviations
  for (const int count : below) EXPECT_NEAR(count, kPositions / 10, 215);
}

}  // namespace
}  // namespace coppice
