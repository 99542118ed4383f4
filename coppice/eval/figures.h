// Figures that evaluations sum up rows to, and how summaries and tables write them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/eval/intervals.h"

namespace coppice {

// A sum over independent items divided by another.
struct Quotient {
  std::vector<double> over, under;  // of each item

  void add(double over_it, double under_it);
  std::size_t items() const { return over.size(); }
  // weights [items]: how often each item counts; empty: once.
  double value(std::span<const int64_t> weights = {}) const;
  std::optional<Interval> interval(uint64_t seed) const;  // 95 %, a bootstrap over items
};

// [low, high]; null for none.
Json interval_json(const std::optional<Interval>& interval);

// What tables say: "0.912 to 1.034", and a row's budget; "-" for null.
std::string interval_text(const Json& interval, int digits = 3);
std::string budget_text(const Json& row);

}  // namespace coppice
