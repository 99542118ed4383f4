#include "coppice/eval/recall_summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "coppice/core/error.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/intervals.h"

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

  Json ratio(uint64_t seed, Json& interval) const {
    interval = Json();
    if (full_correct == 0) return Json();
    std::vector<Text> list;
    for (const auto& [number, text] : texts) list.push_back(text);
    const auto found =
        bootstrap_interval(static_cast<int64_t>(list.size()),
                           [&list](std::span<const int64_t> weights) {
                             double ours = 0.0, theirs = 0.0;
                             for (std::size_t i = 0; i < list.size(); ++i) {
                               ours += static_cast<double>(weights[i] * list[i].correct);
                               theirs += static_cast<double>(weights[i] * list[i].full_correct);
                             }
                             return ours / theirs;
                           },
                           {.seed = seed});
    if (found) interval = Json{found->low, found->high};
    return static_cast<double>(correct) / static_cast<double>(full_correct);
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
  summary["accuracy_interval"] = {wilson.low, wilson.high};
  summary["full_accuracy"] = static_cast<double>(group.full_correct) / trials;
  summary["ratio"] = group.ratio(seed, summary["ratio_interval"]);
  summary["by_kind"] = counts(group.by_kind);
  summary["by_depth"] = counts(group.by_depth);
  return summary;
}

std::string interval_text(const Json& interval) {
  if (interval.is_null()) return "-";
  return fmt::format("{:.3f} to {:.3f}", interval[0].get<double>(), interval[1].get<double>());
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
        row["policy"].get<std::string>(),
        row["budget"].is_null() ? "-" : fmt::format("{}", row["budget"].get<int64_t>()),
        fmt::format("{} of {}", row["correct"].get<int64_t>(), row["trials"].get<int64_t>()),
        row["accuracy"].get<double>(), interval_text(row["accuracy_interval"]),
        row["ratio"].is_null() ? "-" : fmt::format("{:.3f}", row["ratio"].get<double>()),
        interval_text(row["ratio_interval"]));
  }
  return text;
}

}  // namespace coppice
