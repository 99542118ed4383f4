// Means of scores between 0 and 1, and their ratios to the full cache's on the same trials.
#pragma once

#include <string>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/eviction/policy.h"

namespace coppice {

class RowTable;

struct ScoreGrouping {
  std::vector<std::string> fields;  // of the keys: each combination of their values is a group
  std::string score = "score";      // the field of a row that is averaged
  uint64_t seed = 0;
};

// keys: of every trial; trials are independent of each other. One object per group (in the order in
// which keys name them) and setting: the fields, trials, mean, its interval, the full cache's mean
// on the same trials, and the ratio of the two with a paired bootstrap interval over trials (null
// where the full cache has nothing).
//
// The mean's interval is Wilson's with the mean as the share: scores between 0 and 1 vary at most
// as much as right and wrong do with the same mean, so it is never too narrow for that reason, and
// it does not shrink to a point where all trials score alike.
Json score_summary(const RowTable& rows, const std::vector<EvictionConfig>& settings,
                   const std::vector<Json>& keys, const ScoreGrouping& grouping);

std::string score_table(const Json& summary, const std::vector<std::string>& fields);

}  // namespace coppice
