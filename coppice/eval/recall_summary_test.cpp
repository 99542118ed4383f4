#include "coppice/eval/recall_summary.h"

#include <gtest/gtest.h>

#include "coppice/eval/eval_testing.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/intervals.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

const std::vector<EvictionConfig> kSettings = {{.policy = "full"},
                                               {.policy = "streaming", .budget_entries = 8}};

// right: full cache, then streaming, of one trial.
void add(RowTable& rows, int64_t length, int64_t trial, const std::string& kind, double depth,
         std::pair<bool, bool> right) {
  for (std::size_t s = 0; s < 2; ++s) {
    Json row = setting_key(kSettings[s]);
    row["length"] = length;
    row["asked"] = "unseen";
    row["trial"] = trial;
    row["kind"] = kind;
    row["depth"] = depth;
    row["correct"] = s == 0 ? right.first : right.second;
    rows.add(row);
  }
}

TEST(RecallSummary, by_hand) {
  RowTable rows(KeysOnly(Json{{"length", 0}, {"asked", "unseen"}, {"trial", 0}}), {});
  add(rows, 100, 0, "figure", 0.05, {true, true});
  add(rows, 100, 1, "colour", 0.55, {true, false});
  add(rows, 100, 2, "figure", 0.99, {true, false});
  add(rows, 100, 3, "colour", 1.0, {false, false});
  add(rows, 200, 0, "figure", 0.05, {true, true});
  std::vector<Json> keys;
  for (const int64_t length : {100, 200})
    for (int64_t trial = 0; trial < 4; ++trial)
      keys.push_back(Json{{"length", length}, {"asked", "unseen"}, {"trial", trial}});
  const Json summary = recall_summary(rows, kSettings, keys, {.questions = 2, .seed = 1});
  ASSERT_EQ(summary.size(), 6u);
  const Json& full = summary[0];
  EXPECT_EQ(full["length"], 100);
  EXPECT_EQ(full["policy"], "full");
  EXPECT_EQ(full["accuracy"], 0.75);
  EXPECT_EQ(full["ratio"], 1.0);
  const Json& streaming = summary[1];
  EXPECT_EQ(streaming["trials"], 4);
  EXPECT_EQ(streaming["texts"], 2);
  EXPECT_EQ(streaming["correct"], 1);
  EXPECT_NEAR(streaming["ratio"].get<double>(), 1.0 / 3, 1e-12);
  EXPECT_EQ(streaming["full_accuracy"], 0.75);
  EXPECT_EQ(streaming["accuracy_interval"][0].get<double>(), wilson_interval(1, 4).low);
  EXPECT_EQ(streaming["by_kind"], (Json{{"figure", {1, 2}}, {"colour", {0, 2}}}));
  EXPECT_EQ(streaming["by_depth"], (Json{{"0.0", {1, 1}}, {"0.5", {0, 1}}, {"0.9", {0, 2}}}));
  // Two texts, of ratio 1/2 and 0/1: draws lie between.
  EXPECT_EQ(streaming["ratio_interval"][0].get<double>(), 0.0);
  EXPECT_EQ(streaming["ratio_interval"][1].get<double>(), 0.5);
  EXPECT_EQ(summary[3]["trials"], 1);  // what is there of length 200
  EXPECT_TRUE(summary[5]["length"].is_null());
  EXPECT_EQ(summary[5]["trials"], 5);
  EXPECT_EQ(summary[5]["texts"], 2);
}

TEST(RecallSummary, no_ratio_to_a_full_cache_that_knows_nothing) {
  RowTable rows(KeysOnly(Json{{"length", 0}, {"asked", "unseen"}, {"trial", 0}}), {});
  for (int64_t trial = 0; trial < 3; ++trial) add(rows, 100, trial, "figure", 0.5, {false, true});
  std::vector<Json> keys;
  for (int64_t trial = 0; trial < 3; ++trial)
    keys.push_back(Json{{"length", 100}, {"asked", "unseen"}, {"trial", trial}});
  const Json summary = recall_summary(rows, kSettings, keys, {});
  ASSERT_EQ(summary.size(), 2u);
  EXPECT_EQ(summary[1]["accuracy"], 1.0);
  EXPECT_TRUE(summary[1]["ratio"].is_null());
  EXPECT_TRUE(summary[1]["ratio_interval"].is_null());
  EXPECT_NE(recall_table(summary).find("3 of 3"), std::string::npos);
}

}  // namespace
}  // namespace coppice
