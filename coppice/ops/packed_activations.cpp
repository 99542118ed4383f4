#include "coppice/ops/packed_activations.h"

#include <algorithm>

#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

constexpr int64_t kPieceValues = 4096;  // about a microsecond

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
  // A tile is cut by groups, whose rows lie together, so that threads write to lines of their own.
  const int64_t tile_groups = cols / kActivationGroup;
  const int64_t parts = n > kTileRows ? 1 : std::max<int64_t>(1, n * cols / kPieceValues);
  const int64_t grain = std::max<int64_t>(1, kPieceValues / (cols * std::min(n, kTileRows)));
  parallel_for(0, tiles() * parts, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ActivationTile to = tile(i / parts);
      const int64_t first = tile_groups * (i % parts) / parts;
      const int64_t last = tile_groups * (i % parts + 1) / parts;
      for (int64_t row = 0; row < to.rows; ++row)
        kernels.quantise(x + (i / parts * kTileRows + row) * cols, first, last, row, to);
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
