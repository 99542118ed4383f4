#include "coppice/eviction/budget_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "coppice/core/error.h"

namespace coppice {
namespace {

// Gives `left` to rows below their length, in proportion to what they want.
void spread(std::span<const double> wanted, std::span<const int64_t> lengths, double left,
            std::vector<double>& shares) {
  constexpr double kLeast = 1e-9;  // so that a row that wants nothing can take what is over
  while (left > 1e-6) {
    double weight = 0.0;
    for (std::size_t r = 0; r < shares.size(); ++r)
      if (shares[r] < static_cast<double>(lengths[r])) weight += wanted[r] + kLeast;
    if (weight == 0.0) return;
    double given = 0.0;
    for (std::size_t r = 0; r < shares.size(); ++r) {
      const double room = static_cast<double>(lengths[r]) - shares[r];
      if (room <= 0.0) continue;
      const double more = std::min(room, left * (wanted[r] + kLeast) / weight);
      shares[r] = more == room ? static_cast<double>(lengths[r]) : shares[r] + more;
      given += more;
    }
    left -= given;
  }
}

}  // namespace

void share_out(std::span<const double> wanted, std::span<const int64_t> lengths,
               std::span<const int64_t> least, int64_t total, std::span<int64_t> keep) {
  const std::size_t rows = wanted.size();
  std::vector<double> shares(rows);
  double sum = 0.0, above = 0.0;  // above: what lies over the least
  for (std::size_t r = 0; r < rows; ++r) {
    shares[r] =
        std::clamp(wanted[r], static_cast<double>(least[r]), static_cast<double>(lengths[r]));
    sum += shares[r];
    above += shares[r] - static_cast<double>(least[r]);
  }
  const double over = sum - static_cast<double>(total);
  if (over > 0.0 && above > 0.0) {
    for (std::size_t r = 0; r < rows; ++r)
      shares[r] -= (shares[r] - static_cast<double>(least[r])) * std::min(1.0, over / above);
  } else {
    spread(wanted, lengths, -over, shares);
  }
  std::vector<std::size_t> order(rows);
  std::iota(order.begin(), order.end(), std::size_t{0});
  constexpr double kRounding = 1e-7;  // a share a hair below a whole number is that number
  int64_t left = total;
  for (std::size_t r = 0; r < rows; ++r) {
    keep[r] =
        std::clamp(static_cast<int64_t>(std::floor(shares[r] + kRounding)), least[r], lengths[r]);
    left -= keep[r];
  }
  const auto fraction = [&](std::size_t r) { return shares[r] - static_cast<double>(keep[r]); };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return fraction(a) > fraction(b) + kRounding;
  });
  while (left != 0) {
    const int64_t before = left;
    for (std::size_t i = 0; i < rows && left != 0; ++i) {
      const std::size_t r = left > 0 ? order[i] : order[rows - 1 - i];
      const int64_t step = left > 0 ? 1 : -1;
      if (keep[r] + step > lengths[r] || keep[r] + step < least[r]) continue;
      keep[r] += step;
      left -= step;
    }
    COPPICE_CHECK(left != before, "a budget of {} entries cannot be shared", total);
  }
}

std::vector<double> pyramid_shares(int64_t layers, double past, double beta, int64_t length,
                                   int64_t window) {
  std::vector<double> shares(static_cast<std::size_t>(layers), past);
  if (layers == 1 || static_cast<double>(length) < 2.0 * past) return shares;
  const auto longest = static_cast<double>(length - window);
  double low = past / beta, high = 2.0 * past - low;
  if (high >= longest) high = longest, low = 2.0 * past - high;
  const double step = (high - low) / static_cast<double>(layers - 1);
  for (std::size_t l = 0; l < shares.size(); ++l) shares[l] = high - step * static_cast<double>(l);
  return shares;
}

std::vector<double> blend_head_shares(std::span<const int64_t> counts, double alpha) {
  double mean = 0.0;
  for (const int64_t count : counts) mean += static_cast<double>(count);
  mean /= static_cast<double>(counts.size());
  std::vector<double> shares;
  for (const int64_t count : counts)
    shares.push_back((1.0 - alpha) * static_cast<double>(count) + alpha * mean);
  return shares;
}

}  // namespace coppice
