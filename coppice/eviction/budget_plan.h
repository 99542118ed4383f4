// How a budget is divided among rows that want different shares of it: to the entry, so that every
// policy holds the same bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

// Whole numbers near `wanted` that sum to `total`: each row gets at least least[r] and at most
// lengths[r]; what a row cannot take goes to the others in proportion to what they want; fractions
// go by the largest remainder, ties to the lower row. wanted >= 0, finite.
// REQUIRES: sum of least <= total <= sum of lengths, least[r] <= lengths[r].
void share_out(std::span<const double> wanted, std::span<const int64_t> lengths,
               std::span<const int64_t> least, int64_t total, std::span<int64_t> keep);

// PyramidKV: entries besides `window` that each of `layers` layers keeps, of `past` in the mean:
// falling in a line from the first layer to past / beta in the last, or uniform for texts shorter
// than 2 x past. `length`: tokens so far. Source: arXiv:2406.02069. Differs
// from the published code in its exact mean: nothing is floored. -> [layers]
std::vector<double> pyramid_shares(int64_t layers, double past, double beta, int64_t length,
                                   int64_t window);

// AdaKV: heads share a layer's entries by how many of the layer's best they hold, blended with
// equal shares: (1 - alpha) count + alpha x mean(count). Source: arXiv:2407.11550. Differs from the
// published code in that nothing is truncated. -> [heads]
std::vector<double> blend_head_shares(std::span<const int64_t> counts, double alpha);

}  // namespace coppice
