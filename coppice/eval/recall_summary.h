// Accuracies of recall trials, and their ratios to the full cache's.
#pragma once

#include <string>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/eviction/policy.h"

namespace coppice {

class RowTable;

struct RecallSummaryOptions {
  int64_t questions = 1;  // of one text: trials that are drawn together
  uint64_t seed = 0;
};

// keys: {"length", "asked", "trial"} of every trial. One object per way of asking, length and
// setting, then one per setting over all lengths ("length" null): trials, correct, accuracy with
// its Wilson interval, the full cache's accuracy on the same trials, the ratio with its bootstrap
// interval (texts are drawn; null where the full cache has nothing right), and [correct, trials] by
// kind and by tenth of depth.
Json recall_summary(const RowTable& rows, const std::vector<EvictionConfig>& settings,
                    const std::vector<Json>& keys, const RecallSummaryOptions& options);

std::string recall_table(const Json& summary);

}  // namespace coppice
