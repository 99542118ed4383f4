#include "coppice/eviction/budget_plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "coppice/core/rng.h"
#include "coppice/eviction/rival_testing.h"

namespace coppice {
namespace {

using testing::golden_case;

TEST(BudgetPlan, K07_pyramid_budgets_sum_to_the_total) {
  for (const char* name :
       {"pyramidkv_budget_small", "pyramidkv_budget_clamped", "pyramidkv_budget_uniform_regime",
        "pyramidkv_budget_128_L32", "pyramidkv_budget_2048_L32", "pyramidkv_budget_128_L36"}) {
    SCOPED_TRACE(name);
    const Json item = golden_case(name);
    const Json& params = item["params"];
    const int64_t layers = params["num_layers"], window = params["window"];
    const int64_t past = params["avg_budget"].get<int64_t>() - window;
    const int64_t length = item["inputs"]["seq_len"];
    const std::vector<double> wanted =
        pyramid_shares(layers, static_cast<double>(past), params["beta"], length, window);
    const std::vector<int64_t> lengths(wanted.size(), length - window), least(wanted.size(), 0);
    std::vector<int64_t> keep(wanted.size());
    share_out(wanted, lengths, least, past * layers, keep);
    EXPECT_EQ(std::accumulate(keep.begin(), keep.end(), int64_t{0}), past * layers);
    // Theirs floors the step and gives the top layer's remainder away: from the same start, never
    // below ours by more than one, and above it by what flooring adds up to.
    for (std::size_t l = 0; l < keep.size(); ++l) {
      const int64_t theirs = item["expected"]["past_caps"][l];
      EXPECT_LE(keep[l], theirs + 1) << l;
      EXPECT_LE(theirs, keep[l] + static_cast<int64_t>(l) + 1) << l;
    }
  }
}

TEST(BudgetPlan, adakv_blends_as_published_and_keeps_the_total) {
  const Json item = golden_case("adakv_rounding");
  for (const Json& row : item["expected"]["rows"]) {
    const auto counts = row["global_counts"].get<std::vector<int64_t>>();
    const std::vector<double> wanted = blend_head_shares(counts, row["floor_alpha"]);
    const std::vector<int64_t> lengths(3, 1000), least(3, 0);
    std::vector<int64_t> keep(3);
    share_out(wanted, lengths, least, row["target_sum"], keep);
    int64_t sum = 0;
    for (std::size_t h = 0; h < 3; ++h) {
      sum += keep[h];
      EXPECT_NEAR(static_cast<double>(keep[h]), row["past_caps"][h].get<double>(), 1.0);
    }
    EXPECT_EQ(sum, row["target_sum"].get<int64_t>());
  }
}

TEST(BudgetPlan, shares_are_exact_within_what_rows_hold) {
  Rng rng(3);
  for (int n = 0; n < 2000; ++n) {
    const std::size_t rows = 1 + rng.below(9);
    std::vector<double> wanted;
    std::vector<int64_t> lengths, least, keep(rows);
    int64_t low = 0, high = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      wanted.push_back(rng.below(4) == 0 ? 0.0 : static_cast<double>(rng.below(1000)) / 7.0);
      lengths.push_back(static_cast<int64_t>(rng.below(60)));
      least.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(lengths[r]) + 1)));
      low += least[r], high += lengths[r];
    }
    const int64_t total =
        low + static_cast<int64_t>(rng.below(static_cast<uint64_t>(high - low) + 1));
    share_out(wanted, lengths, least, total, keep);
    int64_t sum = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      ASSERT_GE(keep[r], least[r]);
      ASSERT_LE(keep[r], lengths[r]);
      sum += keep[r];
    }
    ASSERT_EQ(sum, total);
  }
}

}  // namespace
}  // namespace coppice
