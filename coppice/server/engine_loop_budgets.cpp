// The level that all budgets stand at which may change (budget_range.h).
#include <algorithm>

#include "coppice/server/engine_loop.h"
#include "coppice/server/request_plan.h"

namespace coppice {

// Checks and completes the request, and counts what it may hold at each level. A request that can
// start at the lowest one is not refused.
void EngineLoop::plan_levels(Job& job, std::optional<EvictionConfig> least) {
  if (!least) {
    job.worst_blocks = plan_request(engine_, job.request).worst_blocks;
    return;
  }
  job.range = {.most = *job.request.eviction, .least = *std::move(least)};
  job.request.eviction = job.range.least;
  const int64_t total = plan_request(engine_, job.request).total_tokens;
  for (int level = 0; level <= kBudgetLevels; ++level)
    job.worst_at.push_back(
        worst_blocks_under(engine_, job.request, settings_at(job.range, level), total));
  job.least_budget = job.range.most.budget_entries;
}

// To active_, were they at that level.
int64_t EngineLoop::promised_at(int level) const {
  int64_t blocks = 0;
  for (const auto& [id, job] : active_) blocks += job.blocks_at(level);
  return blocks;
}

// The highest level at which all that wait for a place fit beside what runs. Where there is none,
// the highest, not above the present one, at which the first that waits does.
std::optional<int> EngineLoop::level_to_start() const {
  const int64_t bound = engine_.config().max_blocks;
  const auto places = engine_.config().scheduler.max_sequences;
  const auto comers = static_cast<std::ptrdiff_t>(std::min(
      static_cast<int64_t>(waiting_.size()), places - static_cast<int64_t>(active_.size())));
  for (int level = kBudgetLevels; level >= 0; --level) {
    int64_t needed = promised_at(level);
    for (auto job = waiting_.begin(); job != waiting_.begin() + comers; ++job)
      needed += job->blocks_at(level);
    if (needed <= bound) return level;
  }
  for (int level = level_; level >= 0; --level)
    if (promised_at(level) + waiting_.front().blocks_at(level) <= bound) return level;
  return std::nullopt;
}

// Gives the job the settings of a level. False: it had them.
bool EngineLoop::take_level(Job& job, int level) const {
  if (job.worst_at.empty()) return false;
  EvictionConfig settings = settings_at(job.range, level);
  job.worst_blocks = job.blocks_at(level);
  job.least_budget = std::min(job.least_budget, settings.budget_entries);
  if (job.request.eviction == settings) return false;
  job.request.eviction = std::move(settings);
  return true;
}

// Snapshots give way to higher budgets.
void EngineLoop::set_level(int level) {
  if (level == level_) return;
  while (promised_at(level) > engine_.config().max_blocks - snapshots_.blocks() &&
         snapshots_.drop_oldest()) {
  }
  level_ = level;
  for (auto& [id, job] : active_) {
    promised_blocks_ -= job.worst_blocks;
    const bool changes = take_level(job, level);
    promised_blocks_ += job.worst_blocks;
    if (!changes) continue;
    job.changed = true;
    engine_.change_eviction(id, *job.request.eviction);
  }
}

// As far up as the pool allows.
void EngineLoop::raise_level() {
  int level = kBudgetLevels;
  while (level > level_ && promised_at(level) > engine_.config().max_blocks) --level;
  set_level(level);
}

}  // namespace coppice
