#include "coppice/study/panel.h"

#include <algorithm>
#include <map>

#include "coppice/core/error.h"

namespace coppice {
namespace {

const Json& field(const Json& row, const std::string& name, const RankTask& task) {
  const auto found = row.find(name);
  if (found == row.end())
    fail_argument("task {}: its summary has no field \"{}\"", task.name, name);
  return *found;
}

std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : dump_json(value);
}

std::string group_name(const Json& row, const RankTask& task) {
  std::string name;
  for (const std::string& group : task.groups) {
    const Json& value = field(row, group, task);
    name += (name.empty() ? "" : ", ") +
            (value.is_null() ? "every " + group : group + " " + plain(value));
  }
  return name;
}

// Whether a row of the file belongs to an entry of the summary.
bool belongs(const Json& row, const Json& entry, const RankTask& task) {
  if (row.value("policy", Json()) != entry["policy"] ||
      row.value("budget", Json()) != entry["budget"])
    return false;
  return std::ranges::all_of(task.groups, [&](const std::string& group) {
    return entry[group].is_null() || row.value(group, Json()) == entry[group];
  });
}

std::optional<int64_t> bytes_of(const std::vector<Json>& rows, const Json& entry,
                                const RankTask& task) {
  std::optional<int64_t> most;
  for (const Json& row : rows) {
    const auto bytes = row.find("bytes_peak");
    if (bytes == row.end() || !bytes->is_number() || !belongs(row, entry, task)) continue;
    most = std::max(most.value_or(0), bytes->get<int64_t>());
  }
  return most;
}

std::optional<Interval> interval_of(const Json& entry, const RankTask& task) {
  if (task.interval.empty()) return std::nullopt;
  const Json& interval = field(entry, task.interval, task);
  if (!interval.is_array() || interval.size() != 2) return std::nullopt;
  return Interval{.low = interval[0].get<double>(), .high = interval[1].get<double>()};
}

}  // namespace

std::vector<int64_t> Panel::budgets() const {
  std::vector<int64_t> all;
  for (const PanelPoint& point : points)
    if (point.budget) all.push_back(*point.budget);
  std::ranges::sort(all);
  const auto repeated = std::ranges::unique(all);
  all.erase(repeated.begin(), repeated.end());
  return all;
}

std::vector<std::string> Panel::policies() const {
  std::vector<std::string> all;
  for (const PanelPoint& point : points)
    if (std::ranges::count(all, point.policy) == 0) all.push_back(point.policy);
  return all;
}

const PanelPoint* Panel::find(const std::string& policy, int64_t budget) const {
  for (const PanelPoint& point : points)
    if (point.policy == policy && point.budget == budget) return &point;
  return nullptr;
}

std::vector<Panel> make_panels(const RankTask& task, const Json& summary,
                               const std::vector<Json>& rows) {
  std::vector<Panel> panels;
  std::map<std::string, std::size_t> index;
  for (const Json& entry : summary) {
    const std::string group = group_name(entry, task);
    const auto [at, fresh] = index.try_emplace(group, panels.size());
    if (fresh) {
      Panel& panel = panels.emplace_back();
      panel.task = task.name;
      panel.group = group;
      panel.title = group.empty() ? task.title : task.title + ", " + group;
      panel.axis = task.axis;
      panel.higher_is_better = task.higher_is_better;
    }
    Panel& panel = panels[at->second];
    const Json& value = field(entry, task.value, task);
    if (!value.is_number()) continue;
    if (field(entry, "budget", task).is_null()) {
      panel.full = value.get<double>();
      continue;
    }
    panel.points.push_back({.policy = field(entry, "policy", task).get<std::string>(),
                            .budget = entry["budget"].get<int64_t>(),
                            .value = value.get<double>(),
                            .interval = interval_of(entry, task),
                            .bytes = bytes_of(rows, entry, task)});
  }
  std::erase_if(panels, [](const Panel& panel) { return panel.points.empty(); });
  return panels;
}

}  // namespace coppice
