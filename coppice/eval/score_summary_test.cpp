#include "coppice/eval/score_summary.h"

#include <gtest/gtest.h>

#include "coppice/eval/eval_testing.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/intervals.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

const std::vector<EvictionConfig> kSettings = {{.policy = "full"},
                                               {.policy = "streaming", .budget_entries = 8}};

TEST(ScoreSummary, by_hand) {
  RowTable rows(KeysOnly(Json{{"kind", ""}, {"trial", 0}}), {});
  std::vector<Json> keys;
  const auto add = [&](const char* kind, int64_t trial, double full, double ours) {
    keys.push_back(Json{{"kind", kind}, {"trial", trial}});
    for (std::size_t s = 0; s < 2; ++s) {
      Json row = setting_key(kSettings[s]);
      row.update(keys.back());
      row["score"] = s == 0 ? full : ours;
      rows.add(row);
    }
  };
  add("a", 0, 1.0, 0.5);
  add("b", 0, 0.0, 0.25);
  add("a", 1, 0.5, 0.25);
  const Json summary = score_summary(rows, kSettings, keys, {.fields = {"kind"}, .seed = 1});
  ASSERT_EQ(summary.size(), 4u);
  EXPECT_EQ(summary[1]["kind"], "a");
  EXPECT_EQ(summary[1]["policy"], "streaming");
  EXPECT_EQ(summary[1]["trials"], 2);
  EXPECT_DOUBLE_EQ(summary[1]["mean"], 0.375);
  EXPECT_DOUBLE_EQ(summary[1]["full_mean"], 0.75);
  EXPECT_DOUBLE_EQ(summary[1]["ratio"], 0.5);
  // Every trial has half of the full cache's score, so every draw has.
  EXPECT_DOUBLE_EQ(summary[1]["ratio_interval"][0], 0.5);
  EXPECT_DOUBLE_EQ(summary[1]["ratio_interval"][1], 0.5);
  EXPECT_EQ(summary[3]["kind"], "b");
  EXPECT_TRUE(summary[3]["ratio"].is_null());
  EXPECT_TRUE(summary[3]["ratio_interval"].is_null());
  EXPECT_LT(summary[3]["mean_interval"][0], 0.25);
  EXPECT_NE(score_table(summary, {"kind"}).find("0.375"), std::string::npos);
}

TEST(ScoreSummary, what_is_not_there_yet_is_left_out) {
  RowTable rows(KeysOnly(Json{{"kind", ""}, {"trial", 0}}), {});
  EXPECT_TRUE(
      score_summary(rows, kSettings, {Json{{"kind", "a"}, {"trial", 0}}}, {.fields = {"kind"}})
          .empty());
}

TEST(ScoreSummary, the_interval_of_a_mean_is_that_of_as_many_right) {
  const Interval share = wilson_interval(7, 20), mean = wilson_interval_of_mean(0.35, 20);
  EXPECT_DOUBLE_EQ(share.low, mean.low);
  EXPECT_DOUBLE_EQ(share.high, mean.high);
}

}  // namespace
}  // namespace coppice
