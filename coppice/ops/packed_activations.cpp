#include "coppice/ops/packed_activations.h"

#include <algorithm>

#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

constexpr int64_t kParallelValues = 16384;  // below, one thread is faster

template <typename T>
void grow(std::vector<T>& v, int64_t size) {
  if (v.size() < static_cast<std::size_t>(size)) v.resize(static_cast<std::size_t>(size));
}

}  // namespace

void PackedActivations::fill(const GemmKernels& kernels, const float* x, int64_t n, int64_t cols) {
  rows_ = n;
  cols_ = cols;
  const int64_t groups = n * (cols / kActivationGroup);
  grow(codes_, n * cols);
  grow(scales_, groups);
  grow(sums32_, groups);
  grow(neg_sums32_, groups);
  grow(sums16_, 2 * groups);
  grow(neg_sums16_, 2 * groups);
  const int64_t grain = std::max<int64_t>(1, kParallelValues / (cols * kTileRows));
  parallel_for(0, tiles(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const ActivationTile to = tile(t);
      for (int64_t row = 0; row < to.rows; ++row) {
        kernels.quantise(x + (t * kTileRows + row) * cols, cols, row, to);
      }
    }
  });
}

ActivationTile PackedActivations::tile(int64_t index) {
  const int64_t first = index * kTileRows;
  const int64_t group = first * (cols_ / kActivationGroup);
  ActivationTile tile;
  tile.rows = std::min(kTileRows, rows_ - first);
  tile.codes = codes_.data() + first * cols_;
  tile.scales = scales_.data() + group;
  tile.sums32 = sums32_.data() + group;
  tile.neg_sums32 = neg_sums32_.data() + group;
  tile.sums16 = sums16_.data() + 2 * group;
  tile.neg_sums16 = neg_sums16_.data() + 2 * group;
  return tile;
}

}  // namespace coppice::ops
