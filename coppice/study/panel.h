// One graph's worth of results: every policy at every budget, of one task and one group of its
// items, whatever the task was.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coppice/eval/intervals.h"
#include "coppice/study/rank_plan.h"

namespace coppice {

struct PanelPoint {
  std::string policy;
  std::optional<int64_t> budget;  // mean entries per KV head; absent: the full cache
  double value = 0.0;
  std::optional<Interval> interval;  // 95 %
  std::optional<int64_t> bytes;      // most bytes of KV blocks held at once, over the group's items
};

struct Panel {
  std::string task;   // RankTask::name
  std::string title;  // with the group: "Held-out text, context 2048"
  std::string group;  // "context 2048"; empty where there is one
  std::string axis;
  bool higher_is_better = false;
  std::vector<PanelPoint> points;  // without the full cache's
  std::optional<double> full;      // the full cache's value

  std::vector<int64_t> budgets() const;       // rising
  std::vector<std::string> policies() const;  // in order of appearance
  const PanelPoint* find(const std::string& policy, int64_t budget) const;
  // Whether a is the better value.
  bool better(double a, double b) const { return higher_is_better ? a > b : a < b; }
};

// summary: what EvalTask::summarise gave; rows: of its file, for the bytes. Entries of the summary
// whose value is null are left out. Throws kInvalidArgument for a summary that lacks what the task
// names.
std::vector<Panel> make_panels(const RankTask& task, const Json& summary,
                               const std::vector<Json>& rows);

}  // namespace coppice
