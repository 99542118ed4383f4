#include "coppice/eval/figures.h"

#include "coppice/core/error.h"

namespace coppice {

void Quotient::add(double over_it, double under_it) {
  over.push_back(over_it);
  under.push_back(under_it);
}

double Quotient::value(std::span<const int64_t> weights) const {
  double sum = 0.0, of = 0.0;
  for (std::size_t i = 0; i < over.size(); ++i) {
    const double weight = weights.empty() ? 1.0 : static_cast<double>(weights[i]);
    sum += weight * over[i];
    of += weight * under[i];
  }
  return sum / of;
}

std::optional<Interval> Quotient::interval(uint64_t seed) const {
  return bootstrap_interval(static_cast<int64_t>(items()),
                            [this](std::span<const int64_t> weights) { return value(weights); },
                            {.seed = seed});
}

Json interval_json(const std::optional<Interval>& interval) {
  return interval ? Json{interval->low, interval->high} : Json();
}

std::string interval_text(const Json& interval, int digits) {
  if (interval.is_null()) return "-";
  return fmt::format("{:.{}f} to {:.{}f}", interval[0].get<double>(), digits,
                     interval[1].get<double>(), digits);
}

std::string budget_text(const Json& row) {
  const Json& budget = row.at("budget");
  return budget.is_null() ? "-" : fmt::format("{}", budget.get<int64_t>());
}

}  // namespace coppice
