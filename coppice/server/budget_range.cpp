#include "coppice/server/budget_range.h"

namespace coppice {

EvictionConfig settings_at(const BudgetRange& range, int level) {
  if (level >= kBudgetLevels || range.fixed()) return range.most;
  const auto between = [level](int64_t least, int64_t most) {
    return least + (most - least) / kBudgetLevels * level +
           (most - least) % kBudgetLevels * level / kBudgetLevels;
  };
  EvictionConfig config = range.most;
  config.budget_entries = between(range.least.budget_entries, range.most.budget_entries);
  config.recent = between(*range.least.recent, *range.most.recent);
  config.floor = between(*range.least.floor, *range.most.floor);
  return config;
}

}  // namespace coppice
