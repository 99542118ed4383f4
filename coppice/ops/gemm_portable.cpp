// The kernels in plain C++, which also say what the others compute.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "coppice/ops/gemm_kernels.h"
#include "coppice/ops/packed_float.h"

namespace coppice::ops {
namespace {

constexpr int kGroup = static_cast<int>(kActivationGroup);

// The scale of 32 values: the largest magnitude becomes 32767. Magnitudes below 2^-100 count as
// zero.
float group_scale(const float* x) {
  float largest = 0.0f, poison = 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    poison += x[i] * 0.0f;  // NaN as soon as one value is infinite or NaN
  }
  if (std::isnan(poison)) return std::numeric_limits<float>::quiet_NaN();
  return largest < 0x1.0p-100f ? 0.0f : largest / 32767.0f;
}

void quantise(const float* x, int64_t first, int64_t last, int64_t row,
              const ActivationTile& tile) {
  x += first * kGroup;
  for (int64_t g = first; g < last; ++g, x += kGroup) {
    const float scale = group_scale(x);
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    const int64_t at = g * tile.rows + row;
    int16_t* codes = tile.codes + at * kGroup;
    int sums[2] = {0, 0};
    for (int i = 0; i < kGroup; ++i) {
      const float scaled = scale > 0.0f ? std::nearbyintf(x[i] * inverse) : 0.0f;
      const int code = static_cast<int>(std::clamp(scaled, -32767.0f, 32767.0f));
      codes[activation_place(i)] = static_cast<int16_t>(code);
      sums[i / 16] += code;
    }
    tile.scales[at] = scale;
    tile.neg_sums32[at] = -(sums[0] + sums[1]);
    tile.sums32[at] = scale * static_cast<float>(sums[0] + sums[1]);
    for (int half = 0; half < 2; ++half) {
      const int64_t at16 = (2 * g + half) * tile.rows + row;
      tile.neg_sums16[at16] = -sums[half];
      tile.sums16[at16] = scale * static_cast<float>(sums[half]);
    }
  }
}

void multiply_codes(const CodeBlocks& w, int64_t block, const ActivationTile& tile,
                    const Output& out) {
  const uint8_t* data = w.data + block * w.block_bytes;
  const int64_t lanes = std::min(kBlockRows, w.rows - block * kBlockRows);
  const int middle = 1 << (w.bits - 1);
  for (int64_t n = 0; n < tile.rows; ++n) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      float total = 0.0f;
      for (int64_t g = 0; g < w.cols / w.group; ++g) {
        const int64_t first = g * w.group;
        const int16_t* x = tile.codes + (first / kGroup * tile.rows + n) * kGroup + first % kGroup;
        int dot = 0;
        for (int i = 0; i < w.group; ++i) {
          dot += code_at(w, data, lane, g, i) * x[activation_place(i)];
        }
        const int64_t at = g * tile.rows + n;
        if (!w.has_minimum) dot += (w.group == 32 ? tile.neg_sums32 : tile.neg_sums16)[at] * middle;
        uint16_t half[2] = {0, 0};
        const uint8_t* scales = data + w.scales_at(g) + lane * 2;
        std::memcpy(&half[0], scales, 2);
        total += static_cast<float>(dot) *
                 (half_to_float(half[0]) * tile.scales[first / kGroup * tile.rows + n]);
        if (w.has_minimum) {
          std::memcpy(&half[1], scales + 2 * kBlockRows, 2);
          total += half_to_float(half[1]) * (w.group == 32 ? tile.sums32 : tile.sums16)[at];
        }
      }
      out.data[n * out.stride + block * kBlockRows + lane] = total * w.unit;
    }
  }
}

void multiply_bf16(const Bf16Blocks& w, int64_t block, const float* x, int64_t n,
                   const Output& out) {
  const uint16_t* data = w.data + block * kBlockRows * w.cols;
  const int64_t lanes = std::min(kBlockRows, w.rows - block * kBlockRows);
  for (int64_t i = 0; i < n; ++i) {
    float even[kBlockRows] = {}, odd[kBlockRows] = {};
    for (int64_t col = 0; col < w.cols; col += 2) {
      const float x0 = x[i * w.cols + col], x1 = x[i * w.cols + col + 1];
      const uint16_t* line = data + col * kBlockRows;
      for (int64_t lane = 0; lane < kBlockRows; ++lane) {
        even[lane] += bf16_to_float(line[2 * lane]) * x0;
        odd[lane] += bf16_to_float(line[2 * lane + 1]) * x1;
      }
    }
    float* to = out.data + i * out.stride + block * kBlockRows;
    for (int64_t lane = 0; lane < lanes; ++lane) to[lane] = even[lane] + odd[lane];
  }
}

}  // namespace

const GemmKernels& portable_gemm_kernels() {
  static constexpr GemmKernels kKernels = {quantise, multiply_codes, multiply_bf16};
  return kKernels;
}

const GemmKernels& gemm_kernels(CpuLevel level) {
  switch (level) {
    case CpuLevel::kAvx512:
      return avx512_gemm_kernels();
    case CpuLevel::kAvx2:
      return avx2_gemm_kernels();
    case CpuLevel::kPortable:
      break;
  }
  return portable_gemm_kernels();
}

}  // namespace coppice::ops
