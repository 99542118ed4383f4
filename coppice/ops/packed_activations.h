// Rows of float32 activations as int16 tiles for the code kernels (layout: gemm_kernels.h).
// Owns memory that is reused from call to call. Not thread-safe: one per thread.
#pragma once

#include <cstdint>
#include <vector>

#include "coppice/ops/gemm_kernels.h"

namespace coppice::ops {

class PackedActivations final {
 public:
  // x [n, cols], n >= 1, cols a multiple of 32. Spread over threads when n is large.
  void fill(const GemmKernels& kernels, const float* x, int64_t n, int64_t cols);

  int64_t tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  ActivationTile tile(int64_t index);

 private:
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  std::vector<int16_t> codes_;
  std::vector<float> scales_, sums32_, sums16_;
  std::vector<int32_t> neg_sums32_, neg_sums16_;
};

}  // namespace coppice::ops
