#include "coppice/study/rank_plan.h"

#include <algorithm>
#include <array>
#include <set>

#include "coppice/core/error.h"

namespace coppice {

const std::string_view kRankPlan = R"({"tasks": [
  {"name": "held-out", "title": "Held-out text", "shows": "quality",
   "command": ["held-out", "--data", "{data}/heldout-unseen.jsonl"],
   "full": ["--contexts", "2048", "4096", "--documents", "6"],
   "quick": ["--contexts", "512", "--documents", "3"],
   "value": "ratio", "interval": "ratio_interval", "groups": ["context"], "better": "lower",
   "axis": "perplexity over the full cache's"},
  {"name": "recall", "title": "Recall of facts, the question unseen at eviction", "shows": "quality",
   "command": ["recall", "--text", "{data}/heldout-unseen.jsonl", "--questions", "4"],
   "full": ["--lengths", "2000", "4000", "--trials", "40"],
   "quick": ["--lengths", "500", "--trials", "4"],
   "value": "accuracy", "interval": "accuracy_interval", "groups": ["length"], "better": "higher",
   "axis": "share of right answers"},
  {"name": "agreement", "title": "Agreement with the full cache's continuation", "shows": "quality",
   "command": ["agreement", "--data", "{data}/heldout-unseen.jsonl"],
   "full": ["--contexts", "2048", "--documents", "6", "--new-tokens", "512"],
   "quick": ["--contexts", "512", "--documents", "2", "--new-tokens", "64"],
   "value": "agreement", "interval": "agreement_interval", "groups": ["context"], "better": "higher",
   "axis": "share of tokens that agree"},
  {"name": "kept", "title": "What is kept", "shows": "kept",
   "command": ["kept", "--data", "{data}/heldout-unseen.jsonl"],
   "full": ["--context", "2048", "--documents", "4"],
   "quick": ["--context", "512", "--documents", "2"],
   "budgets": [128], "quick_budgets": [64]},
  {"name": "cost", "title": "Speed and memory", "shows": "cost",
   "command": ["cost", "--data", "{data}/heldout-unseen.jsonl"],
   "full": ["--prompt-tokens", "4096", "--new-tokens", "128", "--repeats", "3"],
   "quick": ["--prompt-tokens", "512", "--new-tokens", "32", "--repeats", "1"],
   "budgets": [256], "quick_budgets": [64]}
]})";

namespace {

// Reads the fields of one task; each is asked for once, and what is left is unknown.
class Fields final {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail_argument("{}: expected an object", where_);
  }

  template <typename T>
  void read(const char* name, T& value, bool needed) {
    known_.insert(name);
    const auto found = object_.find(name);
    if (found == object_.end()) {
      if (needed) fail_argument("{}: \"{}\" is lacking", where_, name);
      return;
    }
    try {
      value = found->get<T>();
    } catch (const Json::exception&) {
      fail_argument("{}: \"{}\" is of another type than expected: {}", where_, name,
                    dump_json(*found));
    }
  }

  void finish() const {
    for (const auto& [name, ignored] : object_.items())
      if (!known_.contains(name)) fail_argument("{}: \"{}\" is no field of a task", where_, name);
  }

  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
  std::set<std::string> known_;
};

void check_name(const std::string& name, const std::string& where) {
  const bool plain = std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (name.empty() || !plain)
    fail_argument("{}: a name has letters, digits and '-', got \"{}\"", where, name);
}

void check_words(const std::vector<std::string>& words, const std::string& where) {
  static constexpr std::array kOurs = {"--model",   "--gate",   "--policies", "--budgets",
                                       "--out",     "--seed",   "--restart",  "--chunk",
                                       "--threads", "--summary"};
  for (const std::string& word : words) {
    const std::string flag = word.substr(0, word.find('='));
    if (std::ranges::count(kOurs, flag) > 0)
      fail_argument("{}: {} is set by the study", where, flag);
  }
}

RankTask parse_task(const Json& json, std::string where) {
  Fields fields(json, std::move(where));
  RankTask task;
  fields.read("name", task.name, true);
  check_name(task.name, fields.where());
  fields.read("title", task.title, true);
  fields.read("shows", task.shows, true);
  if (task.shows != "quality" && task.shows != "kept" && task.shows != "cost")
    fail_argument("{}: \"shows\" is quality, kept or cost, got \"{}\"", fields.where(), task.shows);
  fields.read("command", task.command, true);
  fields.read("full", task.full, false);
  fields.read("quick", task.quick, false);
  fields.read("policies", task.policies, false);
  fields.read("budgets", task.budgets, false);
  fields.read("quick_budgets", task.quick_budgets, false);
  if (task.command.empty()) fail_argument("{}: \"command\" is empty", fields.where());
  for (const auto* words : {&task.command, &task.full, &task.quick})
    check_words(*words, fields.where());
  if (task.shows == "quality") {
    std::string better;
    fields.read("value", task.value, true);
    fields.read("interval", task.interval, false);
    fields.read("axis", task.axis, true);
    fields.read("groups", task.groups, false);
    fields.read("better", better, true);
    if (better != "lower" && better != "higher")
      fail_argument("{}: \"better\" is lower or higher, got \"{}\"", fields.where(), better);
    task.higher_is_better = better == "higher";
  }
  fields.finish();
  return task;
}

}  // namespace

std::vector<std::string> RankTask::words(bool quick_run, const std::string& data_folder) const {
  std::vector<std::string> all = command;
  const std::vector<std::string>& more = quick_run ? quick : full;
  all.insert(all.end(), more.begin(), more.end());
  static constexpr std::string_view kData = "{data}";
  for (std::string& word : all)
    if (const std::size_t at = word.find(kData); at != std::string::npos)
      word.replace(at, kData.size(), data_folder);
  return all;
}

std::vector<RankTask> parse_rank_plan(std::string_view json, std::string_view what) {
  const Json plan = parse_json(json, what, {.reject_duplicate_keys = true});
  if (!plan.is_object() || plan.size() != 1 || !plan.contains("tasks") ||
      !plan["tasks"].is_array() || plan["tasks"].empty())
    fail_argument("{}: expected an object with one field, \"tasks\", a list", what);
  std::vector<RankTask> tasks;
  for (const Json& entry : plan["tasks"]) {
    RankTask task = parse_task(entry, fmt::format("{}: task {}", what, tasks.size() + 1));
    for (const RankTask& other : tasks)
      if (other.name == task.name) fail_argument("{}: two tasks are named \"{}\"", what, task.name);
    tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace coppice
