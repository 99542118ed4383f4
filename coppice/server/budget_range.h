// Budgets between two: what a request gets while the server is alone with it, and what it gets at
// least while others wait.
//
// Between them lie kBudgetLevels steps, the same for all requests, so that all give up the same
// part of what they may give up, and so that states kept at one step serve others at that step.
#pragma once

#include "coppice/eviction/policy.h"

namespace coppice {

inline constexpr int kBudgetLevels = 8;

// Nothing in either is unset; they differ in the budget and in what follows it (recent, floor).
struct BudgetRange {
  EvictionConfig most, least;

  bool fixed() const { return most.budget_entries == least.budget_entries; }
};

// The settings at a level, from 0 (least) to kBudgetLevels (most).
EvictionConfig settings_at(const BudgetRange& range, int level);

}  // namespace coppice
