// What a ranking leaves in its folder besides the record files:
//
//   report.html    self-contained: plots, what they say in words, tables; light and dark
//   quality.csv    a line per task, group, policy and budget: value, interval, bytes
//   standings.csv, kept.csv, kept-kinds.csv, cost.csv
//   plots/NAME.svg each plot of the report, and NAME.png beside it where rsvg-convert is installed
#pragma once

#include <string>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/study/rank_plan.h"

namespace coppice {

struct RankResult {
  RankTask task;
  Json summary;            // what EvalTask::summarise gave, as `--summary` writes it
  std::vector<Json> rows;  // of the record file
  std::string command;     // that measured it
};

struct RankStudy {
  std::string model;
  std::string command;
  bool quick = false;
  std::vector<RankResult> results;
};

// The policy that the report compares the others with: dbtrimkv where it was measured, else the
// first policy.
std::string own_policy(const RankStudy& study);

// Throws kInvalidArgument for a summary that is not what its task should give; kNotFound or
// kCapacity for a folder that cannot be written. -> whether all plots are there as PNG too.
bool write_rank_output(const RankStudy& study, const std::string& folder);

}  // namespace coppice
