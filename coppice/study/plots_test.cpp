#include "coppice/study/plots.h"

#include <gtest/gtest.h>

#include <cmath>

#include "coppice/study/token_kinds.h"

namespace coppice {
namespace {

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++found;
  return found;
}

void expect_numbers(const std::string& svg) {
  for (const char* word : {"nan", "inf", "\"-0.0\""})
    EXPECT_EQ(svg.find(word), std::string::npos) << word << "\n" << svg;
}

Panel panel_of(std::vector<PanelPoint> points) {
  return {.task = "t",
          .title = "Texts",
          .group = "",
          .axis = "ratio",
          .higher_is_better = false,
          .points = std::move(points),
          .full = 1.0};
}

// One setting over two layers of one head each; the first head keeps punctuation alone.
Json kept_setting(const char* policy, Json budget) {
  std::vector<int64_t> seen(kTokenKinds, 10), first(kTokenKinds, 0), second(kTokenKinds, 2);
  first[2] = 18;
  return {{"policy", policy},
          {"budget", budget},
          {"documents", 1},
          {"layers", 2},
          {"kv_heads", 1},
          {"kept", {18, 18}},
          {"kept_kinds", {first, second}},
          {"seen_kinds", seen}};
}

TEST(PlotPanel, OneCurveAPolicyAndOneWhiskerAnInterval) {
  const Interval interval{.low = 1.1, .high = 1.5};
  const Panel panel = panel_of({{"a", 8, 1.4, interval, 1 << 20},
                                {"a", 16, 1.2, interval, 1 << 21},
                                {"b", 8, 1.3, interval, 1 << 20},
                                {"b", 16, 1.25, {}, {}}});
  const std::map<std::string, std::string> colours = {{"a", "ours"}};
  const std::string budget = plot_panel(panel, PlotAgainst::kBudget, colours).inside_html();
  EXPECT_EQ(count(budget, "<circle"), 4u);
  EXPECT_EQ(count(budget, "<g class=\"curve\""), 2u);
  EXPECT_EQ(count(budget, "whisker s-ours"), 3u);  // two intervals, and the label's
  EXPECT_EQ(count(budget, "whisker s-rest"), 0u);
  EXPECT_NE(budget.find("full cache"), std::string::npos);
  expect_numbers(budget);
  const std::string bytes = plot_panel(panel, PlotAgainst::kBytes, colours).inside_html();
  EXPECT_EQ(count(bytes, "<circle"), 3u);  // one has no bytes
  expect_numbers(bytes);
}

TEST(PlotPanel, WhatIsFarWorseThanTheColouredIsNamedInsteadOfDrawn) {
  const Panel panel = panel_of({{"a", 8, 1.4, {}, {}},
                                {"a", 16, 1.2, {}, {}},
                                {"far", 8, 3.0, {}, {}},
                                {"far", 16, 1.3, {}, {}},
                                {"farther", 8, 5.0, {}, {}},
                                {"near", 8, 1.35, {}, {}}});
  const std::string svg = plot_panel(panel, PlotAgainst::kBudget, {{"a", "ours"}}).inside_html();
  EXPECT_EQ(count(svg, "<circle"), 4u);
  EXPECT_NE(svg.find("outside: far, farther<"), std::string::npos) << svg;
  const std::string all = plot_panel(panel, PlotAgainst::kBudget, {}).inside_html();
  EXPECT_EQ(count(all, "<circle"), 6u);
  EXPECT_EQ(all.find("outside"), std::string::npos);
}

TEST(PlotPanel, ASinglePointAndEqualValuesAreDrawn) {
  for (const double value : {0.0, 1.0, 3.0}) {
    Panel panel = panel_of({{"a", 8, value, {}, {}}, {"b", 8, value, {}, {}}});
    panel.full = value;
    const Svg svg = plot_panel(panel, PlotAgainst::kBudget, {{"a", "ours"}, {"b", "m0"}});
    EXPECT_EQ(count(svg.inside_html(), "<circle"), 2u);
    expect_numbers(svg.inside_html());
    expect_numbers(plot_panel(panel, PlotAgainst::kBytes, {}).inside_html());
  }
}

TEST(PlotKept, ACellAHeadAndTheFullCacheLeftOut) {
  const Json summary = {kept_setting("full", Json()), kept_setting("a", 18), kept_setting("b", 18)};
  EXPECT_DOUBLE_EQ(kind_lean(summary[1], 2, 0), std::log2(9.0));
  EXPECT_DOUBLE_EQ(kind_lean(summary[1], 2, 1), 0.0);
  EXPECT_LT(kind_lean(summary[1], 1, 0), -4.0);  // none is kept, and the figure stays finite
  const std::string map = plot_kept_map(summary).inside_html();
  EXPECT_EQ(count(map, ", layer "), 4u);
  EXPECT_NE(map.find("b, layer 1, head 0: 1.00 of the budget"), std::string::npos);
  const std::string kinds = plot_kind_map(summary).inside_html();
  EXPECT_EQ(count(kinds, "times its share"), 2 * kTokenKinds);
  const std::string heads = plot_head_kinds(summary[1]).inside_html();
  EXPECT_EQ(count(heads, "times its share"), 2 * kTokenKinds);
  for (const std::string& svg : {map, kinds, heads}) expect_numbers(svg);
  expect_numbers(plot_kept_map(Json::array()).inside_html());
}

TEST(PlotBars, ABarASettingAndZerosWithoutHarm) {
  const Json summary = {{{"policy", "a"}, {"budget", 8}, {"rate", 0.0}},
                        {{"policy", "b"}, {"budget", 8}, {"rate", 4.0}}};
  const std::string svg = plot_bars(summary, "rate", 2.0, "Rates <", "b").inside_html();
  EXPECT_EQ(count(svg, "<rect"), 2u);
  EXPECT_NE(svg.find(">8.00<"), std::string::npos);
  EXPECT_NE(svg.find("Rates &lt;"), std::string::npos);
  expect_numbers(svg);
}

TEST(Svg, AFileCarriesItsColoursAndTheRightNamespace) {
  Svg svg(10, 20, "a & b");
  svg.text("f-ink", 1, 2, "start", "x < y");
  EXPECT_TRUE(svg.file().starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_NE(svg.file().find("<style>"), std::string::npos);
  EXPECT_NE(svg.file().find("x &lt; y"), std::string::npos);
  EXPECT_EQ(svg.inside_html().find("<style>"), std::string::npos);
  EXPECT_NE(plot_css().find("prefers-color-scheme:dark"), std::string::npos);
}

}  // namespace
}  // namespace coppice
