// What a ranking measures: a list of evaluations as data. Whatever `coppice eval` can run under
// policies and budgets can be measured by adding an entry; nothing here knows a task.
//
//   {"tasks": [{
//     "name": "held-out",                     of its files; letters, digits and '-'
//     "title": "Held-out text",
//     "command": ["held-out", "--data", "{data}/heldout-unseen.jsonl"],   after `coppice eval`
//     "full": ["--documents", "8"],           more words, of a whole run
//     "quick": ["--documents", "2"],          or of a quick one
//     "policies": [..], "budgets": [..], "quick_budgets": [..],    absent: the study's own
//     "shows": "quality",                     or "kept", "cost": the parts of the report of those
//   with "quality", what a row of the task's summary means:
//     "value": "ratio", "interval": "ratio_interval",
//     "groups": ["context"],                  fields that make panels
//     "better": "lower",                      or "higher"
//     "axis": "perplexity over the full cache's"
//   }]}
//
// "{data}" stands for the folder of `make data`. Model, gate, policies, budgets, seed and --out are
// the study's, so a command does not name them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/json.h"

namespace coppice {

struct RankTask {
  std::string name, title, shows;
  std::vector<std::string> command, full, quick;
  std::vector<std::string> policies;  // empty: the study's
  std::vector<int64_t> budgets, quick_budgets;
  std::string value, interval, axis;
  std::vector<std::string> groups;
  bool higher_is_better = false;

  // The words after `coppice eval`, "{data}" replaced.
  std::vector<std::string> words(bool quick_run, const std::string& data_folder) const;
};

// Throws kInvalidArgument naming the task and the field that is lacking, unknown or of another
// type; for two tasks of one name; and for a command that names what is the study's.
std::vector<RankTask> parse_rank_plan(std::string_view json, std::string_view what);

// The plan of `coppice study rank`.
extern const std::string_view kRankPlan;

}  // namespace coppice
