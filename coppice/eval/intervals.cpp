#include "coppice/eval/intervals.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "coppice/core/rng.h"

namespace coppice {
namespace {

constexpr double kNormal = 1.959963984540054;  // 97.5 % of the normal distribution are below

// Between the two nearest of the sorted values, as they stand at (count - 1) x share.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - std::floor(place));
}

}  // namespace

Interval wilson_interval(int64_t successes, int64_t trials) {
  return wilson_interval_of_mean(static_cast<double>(successes) / static_cast<double>(trials),
                                 trials);
}

Interval wilson_interval_of_mean(double mean, int64_t trials) {
  const auto n = static_cast<double>(trials);
  const double p = std::clamp(mean, 0.0, 1.0);  // a sum may round past its end
  const double z2 = kNormal * kNormal;
  const double middle = p + z2 / (2 * n);
  const double reach = kNormal * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  const double scale = 1 + z2 / n;
  return {.low = std::max(0.0, (middle - reach) / scale),
          .high = std::min(1.0, (middle + reach) / scale)};
}

std::optional<Interval> bootstrap_interval(
    int64_t items, const std::function<double(std::span<const int64_t> weights)>& statistic,
    const BootstrapOptions& options) {
  if (items < 2) return std::nullopt;
  Rng rng(mix_seed(options.seed, 0xb007));
  std::vector<int64_t> weights(static_cast<std::size_t>(items));
  std::vector<double> found;
  for (int64_t round = 0; round < options.rounds; ++round) {
    std::ranges::fill(weights, 0);
    for (int64_t i = 0; i < items; ++i) ++weights[rng.below(static_cast<uint64_t>(items))];
    const double value = statistic(weights);
    if (std::isfinite(value)) found.push_back(value);
  }
  if (found.empty()) return std::nullopt;
  std::ranges::sort(found);
  return Interval{.low = quantile(found, 0.025), .high = quantile(found, 0.975)};
}

}  // namespace coppice
