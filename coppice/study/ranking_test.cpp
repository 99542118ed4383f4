#include "coppice/study/ranking.h"

#include <gtest/gtest.h>

#include "coppice/core/error.h"
#include "coppice/study/rank_report.h"

namespace coppice {
namespace {

constexpr const char* kPlan = R"({"tasks": [{"name": "t", "title": "Texts <&>", "shows": "quality",
  "command": ["held-out"], "value": "ratio", "interval": "ci", "better": "lower", "axis": "ratio",
  "groups": ["context"]}]})";

Json entry(const char* policy, Json budget, double ratio, double half) {
  return {{"policy", policy},
          {"budget", budget},
          {"context", 8},
          {"ratio", ratio},
          {"ci", {ratio - half, ratio + half}}};
}

// At 4, streaming is clearly better; at 8 dbtrimkv is, within the intervals.
Json two_budgets() {
  return {entry("full", Json(), 1.0, 0.0), entry("streaming", 4, 1.2, 0.1),
          entry("streaming", 8, 1.15, 0.1), entry("dbtrimkv", 4, 1.8, 0.1),
          entry("dbtrimkv", 8, 1.1, 0.1)};
}

RankStudy study_of(const Json& summary) {
  RankStudy study{.model = "m", .command = "c", .quick = false, .results = {}};
  study.results.push_back(
      {.task = parse_rank_plan(kPlan, "plan").front(),
       .summary = {{"summary", summary}},
       .rows = {{{"policy", "streaming"}, {"budget", 4}, {"context", 8}, {"bytes_peak", 100}},
                {{"policy", "streaming"}, {"budget", 4}, {"context", 8}, {"bytes_peak", 300}}},
       .command = "c"});
  return study;
}

TEST(Panels, HoldValuesIntervalsAndTheMostBytes) {
  const RankStudy study = study_of(two_budgets());
  const auto panels = make_panels(study.results[0].task, two_budgets(), study.results[0].rows);
  ASSERT_EQ(panels.size(), 1u);
  EXPECT_EQ(panels[0].full, 1.0);
  EXPECT_EQ(panels[0].points.size(), 4u);
  EXPECT_EQ(panels[0].find("streaming", 4)->bytes, 300);
  EXPECT_FALSE(panels[0].find("dbtrimkv", 4)->bytes);
  EXPECT_DOUBLE_EQ(panels[0].find("dbtrimkv", 8)->interval->high, 1.2);
}

TEST(Ranking, SaysWhereAnotherPolicyWins) {
  const auto panels = make_panels(parse_rank_plan(kPlan, "plan").front(), two_budgets(), {});
  const auto standings = rank_policies(panels, "dbtrimkv");
  ASSERT_EQ(standings.size(), 2u);
  for (const Standing& standing : standings) {
    EXPECT_DOUBLE_EQ(standing.mean_rank, 1.5);
    EXPECT_EQ(standing.first, 1);
  }
  EXPECT_EQ(standings[0].policy, "streaming");
  EXPECT_EQ(standings[0].clearly_first, 1);
  EXPECT_EQ(standings[0].clearly_beats, 1);
  EXPECT_EQ(standings[1].clearly_first, 0);
  std::string said;
  for (const std::string& text : findings(panels, "dbtrimkv")) said += text + "\n";
  EXPECT_NE(said.find("at 4 entries a head dbtrimkv has 1.800 (1.700 to 1.900), worse than "
                      "streaming 1.200 (1.100 to 1.300) beyond the intervals"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("dbtrimkv has the best value at 8"), std::string::npos) << said;
}

TEST(RankReport, IsOnePageWithItsPlotsAndTables) {
  const RankReport report = make_rank_report(study_of(two_budgets()));
  EXPECT_NE(report.html.find("Texts &lt;&amp;&gt;"), std::string::npos);
  EXPECT_EQ(report.html.find("Texts <&>"), std::string::npos);
  for (const char* outside : {"src=", "href=", "url(", "<script"})
    EXPECT_EQ(report.html.find(outside), std::string::npos) << outside;
  EXPECT_EQ(report.html.find("nan"), std::string::npos);
  EXPECT_EQ(report.plots.size(), 2u);
  ASSERT_EQ(report.tables.size(), 2u);
  EXPECT_NE(report.tables[1].second.find("t,context 8,streaming,4,1.2000,1.1000,1.3000,300\n"),
            std::string::npos)
      << report.tables[1].second;
}

TEST(RankPlan, TheBuiltInOneIsWhole) {
  const auto plan = parse_rank_plan(kRankPlan, "plan");
  EXPECT_EQ(plan.size(), 5u);
  for (const RankTask& task : plan)
    for (const bool quick : {false, true})
      for (const std::string& word : task.words(quick, "/d"))
        EXPECT_EQ(word.find('{'), std::string::npos) << word;
}

TEST(RankPlan, RefusesWhatItDoesNotKnow) {
  for (
      const char* plan :
      {R"({"tasks": []})", R"({"tasks": [{"name": "a"}]})",
       R"({"tasks": [{"name": "a/b", "title": "", "shows": "kept", "command": ["kept"]}]})",
       R"({"tasks": [{"name": "a", "title": "", "shows": "joy", "command": ["kept"]}]})",
       R"({"tasks": [{"name": "a", "title": "", "shows": "kept", "command": ["kept", "--out=x"]}]})",
       R"({"tasks": [{"name": "a", "title": "", "shows": "kept", "command": ["k"], "x": 1}]})"})
    EXPECT_THROW(parse_rank_plan(plan, "plan"), Error) << plan;
}

TEST(Svg, EscapesWhatItIsGiven) {
  EXPECT_EQ(escape_markup("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
}

}  // namespace
}  // namespace coppice
