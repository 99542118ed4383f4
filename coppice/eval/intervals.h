// How sure a figure is: 95 % intervals.
//
// Every interval is a function of its arguments alone: resampling is seeded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace coppice {

struct Interval {
  double low = 0.0;
  double high = 0.0;
};

// Of a share, `successes` of `trials`. Wilson, Journal of the American Statistical Association 22
// (1927): (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n). REQUIRES: 0 <= successes <=
// trials, trials >= 1.
Interval wilson_interval(int64_t successes, int64_t trials);
// The same of any share: for a mean of figures between 0 and 1 it is at least as wide as that of
// right and wrong. REQUIRES: 0 <= mean <= 1, trials >= 1.
Interval wilson_interval_of_mean(double mean, int64_t trials);

struct BootstrapOptions {
  int64_t rounds = 2000;
  uint64_t seed = 0;
};

// Percentile bootstrap over `items` independent items: each round draws as many of them with
// replacement and asks for the statistic of the draw, in which an item stands as often as it was
// drawn. Paired comparisons are had by a statistic that reads both sides of each item. Rounds whose
// statistic is not finite (a share of nothing) are left out. nullopt: fewer than two items, or no
// round was left.
//
// statistic: weights [items] -> the figure.
std::optional<Interval> bootstrap_interval(
    int64_t items, const std::function<double(std::span<const int64_t> weights)>& statistic,
    const BootstrapOptions& options);

}  // namespace coppice
