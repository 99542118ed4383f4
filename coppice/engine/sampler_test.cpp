#include "coppice/engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "coppice/core/error.h"

namespace coppice {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

int32_t draw_once(const SamplingParams& params, const std::vector<float>& logits,
                  const std::vector<int32_t>& prompt = {}) {
  Sampler sampler(params, static_cast<int64_t>(logits.size()));
  sampler.note_prompt(prompt);
  return sampler.sample(logits).id;
}

std::map<int32_t, int> histogram(SamplingParams params, const std::vector<float>& logits,
                                 int draws) {
  params.seed = 3;
  Sampler sampler(params, static_cast<int64_t>(logits.size()));
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.sample(logits).id];
  return counts;
}

std::vector<float> random_row(Rng& rng, int64_t size) {
  std::vector<float> row(static_cast<std::size_t>(size));
  for (float& score : row) score = static_cast<float>(rng.uniform() * 12 - 6);
  return row;
}

TEST(Sampler, S01_temperature_zero_is_arg_max_whatever_else_is_set) {
  const std::vector<float> logits = {0.5F, 2.0F, 2.0F, -1.0F};
  for (const double top_p : {1.0, 0.1}) {
    for (const int64_t top_k : {int64_t{0}, int64_t{5}}) {
      SamplingParams params{.temperature = 0, .top_k = top_k, .top_p = top_p, .min_p = 0.9};
      for (int i = 0; i < 20; ++i) EXPECT_EQ(draw_once(params, logits), 1);  // lowest of equals
    }
  }
}

TEST(Sampler, S02_tiny_temperatures_are_arg_max_and_huge_scores_stay_finite) {
  for (const double t : {1e-8, 1e-40, 1e-300, 1e-5, 2e-5}) {
    EXPECT_EQ(draw_once({.temperature = t}, {1.0F, 3.0F, 2.0F}), 1);
  }
  EXPECT_EQ(draw_once({.temperature = 2e-5}, {-3e38F, 3e38F, 0.0F}), 1);
  EXPECT_EQ(draw_once({.temperature = 0, .logit_bias = {{0, 100.0}}}, {3e38F, 3.1e38F}), 1);
}

TEST(Sampler, S03_top_p_zero_is_the_single_best_token) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(draw_once({.temperature = 1, .top_p = 0}, {1.0F, 1.1F, 1.0F}), 1);
  }
}

TEST(Sampler, S04_top_k_clamps_and_zero_or_minus_one_is_off) {
  const std::vector<float> logits = {1, 2, 3, 2.5F};
  const auto all = histogram({}, logits, 2000);
  EXPECT_EQ(all.size(), 4u);
  for (const int64_t k : {int64_t{-1}, int64_t{0}, int64_t{4}, int64_t{9999999}}) {
    EXPECT_EQ(histogram({.top_k = k}, logits, 2000), all) << k;
  }
  const auto two = histogram({.top_k = 2}, logits, 2000);
  EXPECT_EQ(two.size(), 2u);
  EXPECT_TRUE(two.contains(2) && two.contains(3));
}

TEST(Sampler, top_k_breaks_ties_by_lower_id) {
  const auto counts = histogram({.top_k = 3}, {1, 5, 1, 1, 1, 1}, 3000);
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_TRUE(counts.contains(0) && counts.contains(1) && counts.contains(2));
}

// The distribution of every filter against a full sort, on random rows.
TEST(Sampler, filters_equal_a_sorted_reference) {
  Rng rng(5);
  for (int round = 0; round < 40; ++round) {
    const int64_t size = 2 + static_cast<int64_t>(rng.below(40));
    const std::vector<float> row = random_row(rng, size);
    SamplingParams params{.temperature = 0.5 + rng.uniform(),
                          .top_k = static_cast<int64_t>(rng.below(static_cast<uint64_t>(size))),
                          .top_p = 0.2 + 0.8 * rng.uniform(),
                          .min_p = rng.uniform() * 0.2};
    if (params.top_k == 1) params.top_k = 0;
    std::vector<int32_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
    });
    if (params.top_k > 0) order.resize(static_cast<std::size_t>(params.top_k));
    const auto weight = [&](int32_t id) {
      return std::exp(
          (row[static_cast<std::size_t>(id)] - row[static_cast<std::size_t>(order[0])]) /
          params.temperature);
    };
    double total = 0;
    for (const int32_t id : order) total += weight(id);
    std::map<int32_t, double> expected;
    double held = 0, kept = 0;
    for (const int32_t id : order) {
      if (held >= params.top_p * total) break;
      held += weight(id);
      if (weight(id) >= params.min_p) kept += expected[id] = weight(id);
    }
    const int draws = 4000;
    const auto counts = histogram(params, row, draws);
    for (const auto& [id, count] : counts) ASSERT_TRUE(expected.contains(id)) << round;
    for (const auto& [id, w] : expected) {
      const double p = w / kept;
      const auto found = counts.find(id);
      const double share = found == counts.end() ? 0.0 : double(found->second) / draws;
      EXPECT_NEAR(share, p, 5 * std::sqrt(p * (1 - p) / draws) + 2.0 / draws);
    }
  }
}

TEST(Sampler, S06_faulty_scores_give_the_finite_arg_max) {
  for (const float fault : {kNan, kInf, -kNan}) {
    for (const std::size_t at : {0u, 2u, 4u}) {
      std::vector<float> logits = {0, 1, 2, 5, 1};
      logits[at] = fault;
      for (const double temperature : {0.0, 1.0}) {
        EXPECT_EQ(draw_once({.temperature = temperature}, logits), 3);
      }
      // Bias and penalties do not turn a fault into a number.
      EXPECT_EQ(draw_once({.repetition_penalty = 1.1, .logit_bias = {{int64_t(at), 100.0}}}, logits,
                          {0, 1, 2, 4}),
                3);
    }
  }
}

TEST(Sampler, S06_S07_rows_without_a_finite_score_are_an_error) {
  for (const float bad : {kNan, -kInf, kInf}) {
    for (const double temperature : {0.0, 1.0}) {
      EXPECT_THROW(draw_once({.temperature = temperature}, {bad, bad, bad}), Error);
    }
  }
  EXPECT_THROW(draw_once({}, {kNan, -kInf, kInf}), Error);
  EXPECT_EQ(draw_once({}, {-kInf, -7.0F, -kInf}), 1);  // one token left is no fault
}

TEST(Sampler, S07_banned_tokens_are_never_drawn) {
  const auto counts = histogram({.top_p = 0.999}, {-kInf, 0, -kInf, 0, -kInf}, 1000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_FALSE(counts.contains(0) || counts.contains(2) || counts.contains(4));
}

TEST(Sampler, S09_without_a_seed_two_of_five_requests_differ) {
  const std::vector<float> logits(1000, 0.0F);
  std::set<int32_t> drawn;
  for (int i = 0; i < 5; ++i) drawn.insert(draw_once({}, logits));
  EXPECT_GE(drawn.size(), 2u);
}

TEST(Sampler, a_seed_reproduces) {
  const std::vector<float> logits(1000, 0.0F);
  EXPECT_EQ(draw_once({.seed = 7}, logits), draw_once({.seed = 7}, logits));
  Sampler unseeded({}, 1000);
  EXPECT_EQ(unseeded.sample(logits).id, draw_once({.seed = unseeded.seed()}, logits));
}

TEST(Sampler, S10_repetition_penalty_counts_once_and_moves_down) {
  const SamplingParams params{.temperature = 0, .repetition_penalty = 1.5};
  const std::vector<int32_t> seen = {0, 1, 0, 1, 0, 1};
  // 2 becomes 1.333: above 1.33, below 1.34.
  EXPECT_EQ(draw_once(params, {-1, 2, 1.33F}, seen), 1);
  EXPECT_EQ(draw_once(params, {-1, 2, 1.34F}, seen), 2);
  // -1 becomes -1.5.
  EXPECT_EQ(draw_once(params, {-1, -9, -1.49F}, seen), 2);
  EXPECT_EQ(draw_once(params, {-1, -9, -1.51F}, seen), 0);
}

TEST(Sampler, presence_and_frequency_penalties_count_generated_tokens_alone) {
  const std::vector<float> logits = {2.0F, 1.2F, 0.0F};
  EXPECT_EQ(draw_once({.temperature = 0, .presence_penalty = 2}, logits, {0, 0, 0}), 0);
  Sampler presence({.temperature = 0, .presence_penalty = 1}, 3);
  std::vector<int32_t> drawn;
  for (int i = 0; i < 4; ++i) drawn.push_back(presence.sample(logits).id);
  EXPECT_EQ(drawn, (std::vector<int32_t>{0, 1, 0, 0}));  // once each, however often drawn
  Sampler frequency({.temperature = 0, .frequency_penalty = 0.5}, 3);
  drawn.clear();
  for (int i = 0; i < 5; ++i) drawn.push_back(frequency.sample(logits).id);
  EXPECT_EQ(drawn, (std::vector<int32_t>{0, 0, 1, 0, 1}));  // 2, 1.5, 1.2 | 1, 0.7
}

TEST(Sampler, logit_bias_is_added_first) {
  EXPECT_EQ(draw_once({.temperature = 0, .logit_bias = {{2, 100.0}}}, {5, 6, -90}), 2);
  EXPECT_EQ(draw_once({.temperature = 0, .logit_bias = {{1, -100.0}}}, {5, 6, -90}), 0);
}

TEST(Sampler, logprobs_are_those_of_the_model) {
  const std::vector<float> logits = {1, 3, 2, kNan};
  SamplingParams params{.temperature = 0, .logit_bias = {{0, 50.0}}, .logprobs = 2};
  Sampler sampler(params, 4);
  const SampledToken token = sampler.sample(logits);
  const double total = std::exp(1.0) + std::exp(3.0) + std::exp(2.0);
  EXPECT_EQ(token.id, 0);
  EXPECT_NEAR(token.logprob, std::log(std::exp(1.0) / total), 1e-6);
  ASSERT_EQ(token.top.size(), 2u);
  EXPECT_EQ(token.top[0].id, 1);
  EXPECT_NEAR(token.top[0].logprob, std::log(std::exp(3.0) / total), 1e-6);
  EXPECT_EQ(token.top[1].id, 2);
}

TEST(Sampler, a_row_of_the_wrong_size_is_refused) {
  Sampler sampler({}, 5);
  EXPECT_THROW(sampler.sample(std::vector<float>(4, 0.0F)), Error);
}

}  // namespace
}  // namespace coppice
