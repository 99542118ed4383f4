#include "coppice/study/ranking.h"

#include <algorithm>
#include <map>

#include "coppice/core/error.h"

namespace coppice {
namespace {

// Points of one panel at one budget, best first.
std::vector<const PanelPoint*> cell_of(const Panel& panel, int64_t budget) {
  std::vector<const PanelPoint*> cell;
  for (const PanelPoint& point : panel.points)
    if (point.budget == budget) cell.push_back(&point);
  std::ranges::stable_sort(cell, [&panel](const PanelPoint* a, const PanelPoint* b) {
    return panel.better(a->value, b->value);
  });
  return cell;
}

bool clearly_better(const Panel& panel, const PanelPoint& a, const PanelPoint& b) {
  if (!a.interval || !b.interval) return false;
  return panel.higher_is_better ? a.interval->low > b.interval->high
                                : a.interval->high < b.interval->low;
}

// Equal values share the mean of their places, from 1.
void add_ranks(const Panel& panel, const std::vector<const PanelPoint*>& cell,
               std::map<std::string, Standing>& standings) {
  for (std::size_t begin = 0; begin < cell.size();) {
    std::size_t end = begin;
    while (end < cell.size() && cell[end]->value == cell[begin]->value) ++end;
    const double rank = static_cast<double>(begin + 1 + end) / 2.0;
    for (std::size_t i = begin; i < end; ++i) {
      Standing& standing = standings[cell[i]->policy];
      standing.mean_rank += rank;
      ++standing.cells;
      if (begin == 0) ++standing.first;
    }
    begin = end;
  }
  const bool alone = cell.size() > 1 && std::ranges::all_of(cell, [&](const PanelPoint* other) {
                       return other == cell.front() || clearly_better(panel, *cell.front(), *other);
                     });
  if (alone) ++standings[cell.front()->policy].clearly_first;
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i)
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return text;
}

std::string value_text(const PanelPoint& point) {
  if (!point.interval) return fmt::format("{:.3f}", point.value);
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", point.value, point.interval->low,
                     point.interval->high);
}

// One sentence for each budget at which another than `ours` has the better value, or one that there
// is none.
std::vector<std::string> panel_findings(const Panel& panel, const std::string& ours) {
  std::vector<std::string> lost, won, tied;
  for (const int64_t budget : panel.budgets()) {
    const auto cell = cell_of(panel, budget);
    const PanelPoint* mine = panel.find(ours, budget);
    if (mine == nullptr || cell.size() < 2) continue;
    std::vector<std::string> clear, within;
    for (const PanelPoint* other : cell)
      if (panel.better(other->value, mine->value))
        (clearly_better(panel, *other, *mine) ? clear : within)
            .push_back(other->policy + " " + value_text(*other));
    if (clear.empty() && within.empty()) {
      const bool shared = std::ranges::any_of(cell, [mine](const PanelPoint* other) {
        return other != mine && other->value == mine->value;
      });
      (shared ? tied : won).push_back(fmt::format("{}", budget));
      continue;
    }
    std::string text = fmt::format("{}: at {} entries a head {} has {}, worse than ", panel.title,
                                   budget, ours, value_text(*mine));
    if (!clear.empty()) text += join(clear) + " beyond the intervals";
    if (!within.empty())
      text += (clear.empty() ? "" : ", and than ") + join(within) + " within them";
    lost.push_back(text + ".");
  }
  std::vector<std::string> all;
  if (!won.empty())
    all.push_back(fmt::format("{}: {} has the best value at {} entries a head.", panel.title, ours,
                              join(won)));
  if (!tied.empty())
    all.push_back(fmt::format("{}: {} shares the best value at {} entries a head.", panel.title,
                              ours, join(tied)));
  all.insert(all.end(), lost.begin(), lost.end());
  return all;
}

std::string overall(const std::vector<Standing>& standings, const std::string& ours) {
  const Standing& best = standings.front();
  std::string text = fmt::format(
      "Over all tasks and budgets {} ranks first: mean rank {:.1f} of {} policies, best value in "
      "{} of {} comparisons, {} of them beyond the intervals.",
      best.policy, best.mean_rank, standings.size(), best.first, best.cells, best.clearly_first);
  if (best.policy == ours) {
    if (standings.size() > 1)
      text += fmt::format(" Next is {} with {:.1f}.", standings[1].policy, standings[1].mean_rank);
    return text;
  }
  for (std::size_t i = 1; i < standings.size(); ++i)
    if (standings[i].policy == ours)
      text +=
          fmt::format(" {} is number {}, mean rank {:.1f}.", ours, i + 1, standings[i].mean_rank);
  return text;
}

}  // namespace

std::vector<Standing> rank_policies(const std::vector<Panel>& panels, const std::string& ours) {
  std::vector<std::string> order;
  std::map<std::string, Standing> standings;
  for (const Panel& panel : panels) {
    for (const std::string& policy : panel.policies())
      if (std::ranges::count(order, policy) == 0) order.push_back(policy);
    for (const int64_t budget : panel.budgets()) {
      add_ranks(panel, cell_of(panel, budget), standings);
      const PanelPoint* mine = panel.find(ours, budget);
      if (mine == nullptr) continue;
      for (const PanelPoint& point : panel.points) {
        if (point.budget != budget || point.policy == ours) continue;
        if (clearly_better(panel, point, *mine)) ++standings[point.policy].clearly_beats;
        if (clearly_better(panel, *mine, point)) ++standings[point.policy].clearly_beaten;
      }
    }
  }
  std::vector<Standing> all;
  for (const std::string& policy : order) {
    Standing standing = standings[policy];
    standing.policy = policy;
    if (standing.cells > 0) standing.mean_rank /= static_cast<double>(standing.cells);
    all.push_back(standing);
  }
  std::ranges::stable_sort(all, {}, &Standing::mean_rank);
  return all;
}

std::vector<std::string> findings(const std::vector<Panel>& panels, const std::string& ours) {
  std::vector<std::string> all;
  const std::vector<Standing> standings = rank_policies(panels, ours);
  if (standings.size() < 2) return all;
  all.push_back(overall(standings, ours));
  for (const Panel& panel : panels)
    for (std::string& text : panel_findings(panel, ours)) all.push_back(std::move(text));
  return all;
}

}  // namespace coppice
