#include "coppice/eval/score_summary.h"

#include <algorithm>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/figures.h"

namespace coppice {
namespace {

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// scores: ours over the full cache's.
Json summary_of(const Quotient& scores, const EvictionConfig& eviction, const Json& group,
                uint64_t seed) {
  const double mean = mean_of(scores.over), full = mean_of(scores.under);
  const Interval wilson = wilson_interval_of_mean(mean, static_cast<int64_t>(scores.items()));
  Json summary = setting_key(eviction);
  summary.update(group);
  summary["trials"] = scores.items();
  summary["mean"] = mean;
  summary["mean_interval"] = interval_json(wilson);
  summary["full_mean"] = full;
  summary["ratio"] = full > 0.0 ? Json(mean / full) : Json();
  summary["ratio_interval"] = full > 0.0 ? interval_json(scores.interval(seed)) : Json();
  return summary;
}

std::string text_of(const Json& value) {
  if (value.is_null()) return "-";
  return value.is_string() ? value.get<std::string>() : dump_json(value);
}

}  // namespace

Json score_summary(const RowTable& rows, const std::vector<EvictionConfig>& settings,
                   const std::vector<Json>& keys, const ScoreGrouping& grouping) {
  std::vector<Json> groups;
  std::vector<std::vector<const Json*>> members;
  for (const Json& key : keys) {
    Json group = Json::object();
    for (const std::string& field : grouping.fields) group[field] = key.at(field);
    const auto place = static_cast<std::size_t>(std::ranges::find(groups, group) - groups.begin());
    if (place == groups.size()) {
      groups.push_back(group);
      members.emplace_back();
    }
    members[place].push_back(&key);
  }
  Json all = Json::array();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const EvictionConfig& eviction : settings) {
      Quotient scores;
      for (const Json* key : members[g]) {
        const Json* ours = rows.find(*key, eviction);
        const Json* full = rows.find(*key, {.policy = "full"});
        if (ours == nullptr || full == nullptr) continue;
        scores.add(ours->at(grouping.score).get<double>(), full->at(grouping.score).get<double>());
      }
      if (scores.items() > 0) all.push_back(summary_of(scores, eviction, groups[g], grouping.seed));
    }
  }
  return all;
}

std::string score_table(const Json& summary, const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) text += fmt::format("{:<18} ", field);
  text += fmt::format("{:<24} {:>7}  {:>6}  {:>6}  {:<14}  {:>6}  {}\n", "policy", "budget",
                      "trials", "mean", "95 % interval", "/ full", "95 % interval");
  for (const Json& row : summary) {
    for (const std::string& field : fields) text += fmt::format("{:<18} ", text_of(row.at(field)));
    text += fmt::format(
        "{:<24} {:>7}  {:>6}  {:>6.3f}  {:<14}  {:>6}  {}\n", row.at("policy").get<std::string>(),
        budget_text(row), row.at("trials").get<int64_t>(), row.at("mean").get<double>(),
        interval_text(row.at("mean_interval")),
        row.at("ratio").is_null() ? "-" : fmt::format("{:.3f}", row.at("ratio").get<double>()),
        interval_text(row.at("ratio_interval")));
  }
  return text;
}

}  // namespace coppice
