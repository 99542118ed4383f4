#include "coppice/eval/recall_summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "coppice/core/error.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/figures.h"

namespace coppice {
namespace {

// Trials of one text, at any length.
struct Text {
  int64_t correct = 0;
  int64_t full_correct = 0;
};

struct Group {
  std::map<int64_t, Text> texts;
  int64_t trials = 0, correct = 0, full_correct = 0;
  std::map<std::string, std::pair<int64_t, int64_t>> by_kind, by_depth;  // correct, trials

  void add(int64_t text, const Json& ours, const Json& full) {
    const int64_t right = ours.at("correct").get<bool>() ? 1 : 0;
    const int64_t full_right = full.at("correct").get<bool>() ? 1 : 0;
    texts[text].correct += right;
    texts[text].full_correct += full_right;
    ++trials;
    correct += right;
    full_correct += full_right;
    const double tenth = std::floor(std::clamp(ours.at("depth").get<double>(), 0.0, 0.999) * 10);
    for (auto* count : {&by_kind[ours.at("kind").get<std::string>()],
                        &by_depth[fmt::format("{:.1f}", tenth / 10)]}) {
      count->first += right;
      ++count->second;
    }
  }

  // Right answers over the full cache's, by text.
  Quotient ratio() const {
    Quotient ratio;
    for (const auto& [number, text] : texts)
      ratio.add(static_cast<double>(text.correct), static_cast<double>(text.full_correct));
    return ratio;
  }
};

Json counts(const std::map<std::string, std::pair<int64_t, int64_t>>& map) {
  Json result = Json::object();
  for (const auto& [name, count] : map) result[name] = {count.first, count.second};
  return result;
}

Json summary_of(const Group& group, const EvictionConfig& eviction, const std::string& asked,
                const Json& length, uint64_t seed) {
  const auto trials = static_cast<double>(group.trials);
  const Interval wilson = wilson_interval(group.correct, group.trials);
  Json summary = setting_key(eviction);
  summary["asked"] = asked;
  summary["length"] = length;
  summary["trials"] = group.trials;
  summary["texts"] = group.texts.size();
  summary["correct"] = group.correct;
  summary["accuracy"] = static_cast<double>(group.correct) / trials;
  summary["accuracy_interval"] = interval_json(wilson);
  summary["full_accuracy"] = static_cast<double>(group.full_correct) / trials;
  const Quotient ratio = group.ratio();
  const bool any = group.full_correct > 0;
  summary["ratio"] = any ? Json(ratio.value()) : Json();
  summary["ratio_interval"] = any ? interval_json(ratio.interval(seed)) : Json();
  summary["by_kind"] = counts(group.by_kind);
  summary["by_depth"] = counts(group.by_depth);
  return summary;
}

}  // namespace

Json recall_summary(const RowTable& rows, const std::vector<EvictionConfig>& settings,
                    const std::vector<Json>& keys, const RecallSummaryOptions& options) {
  std::set<int64_t> lengths;
  std::vector<std::string> ways;
  for (const Json& key : keys) {
    lengths.insert(key.at("length").get<int64_t>());
    const auto asked = key.at("asked").get<std::string>();
    if (std::ranges::count(ways, asked) == 0) ways.push_back(asked);
  }
  std::vector<Json> groups(lengths.begin(), lengths.end());
  if (groups.size() > 1) groups.emplace_back();
  Json all = Json::array();
  for (const std::string& asked : ways) {
    for (const Json& length : groups) {
      for (const EvictionConfig& eviction : settings) {
        Group group;
        for (const Json& key : keys) {
          if (key.at("asked") != asked || (!length.is_null() && key.at("length") != length))
            continue;
          const Json* ours = rows.find(key, eviction);
          const Json* full = rows.find(key, {.policy = "full"});
          if (ours != nullptr && full != nullptr)
            group.add(key.at("trial").get<int64_t>() / options.questions, *ours, *full);
        }
        if (group.trials > 0)
          all.push_back(summary_of(group, eviction, asked, length, options.seed));
      }
    }
  }
  return all;
}

std::string recall_table(const Json& summary) {
  std::string text = fmt::format("{:<7} {:>6}  {:<24} {:>7}  {:>9}  {:>8}  {:<14}  {:>6}  {}\n",
                                 "asked", "length", "policy", "budget", "correct", "accuracy",
                                 "95 % interval", "/ full", "95 % interval");
  for (const Json& row : summary) {
    text += fmt::format(
        "{:<7} {:>6}  {:<24} {:>7}  {:>9}  {:>8.3f}  {:<14}  {:>6}  {}\n",
        row["asked"].get<std::string>(),
        row["length"].is_null() ? "all" : fmt::format("{}", row["length"].get<int64_t>()),
        row["policy"].get<std::string>(), budget_text(row),
        fmt::format("{} of {}", row["correct"].get<int64_t>(), row["trials"].get<int64_t>()),
        row["accuracy"].get<double>(), interval_text(row["accuracy_interval"]),
        row["ratio"].is_null() ? "-" : fmt::format("{:.3f}", row["ratio"].get<double>()),
        interval_text(row["ratio_interval"]));
  }
  return text;
}

}  // namespace coppice
