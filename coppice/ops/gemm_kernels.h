// The inner loops of PackedMatrix: one set per CpuLevel, on raw memory.
//
// Weights lie in blocks of 16 rows. In a block of codes, 64 bytes hold a few columns of all rows:
//
//   8 bit   byte 4r + i               column 4c + i of row r            (4 columns a line)
//   4 bit   byte 4r + i, low half     column 8c + i of row r            (8 columns a line)
//           byte 4r + i, high half    column 8c + 4 + i of row r
//   scales  after all codes, per group of columns: float16 [16], then where the form has them
//           minimums float16 [16]
//
// and in a block of bfloat16 values, 64 bytes hold two columns: value 2r + i is column 2p + i of
// row r; an odd last column is followed by zeros.
//
// Activations of the code kernels are int8 with a float32 scale per 32 columns, grouped in tiles of
// up to kTileRows rows. With `rows` rows in a tile, its parts for column group g are
//   codes [g][row][32]   scales [g][row]   sums32 [g][row]   sums16 [2g], [2g + 1] [row]
//
// Every kernel adds the groups of a row in the same order, whatever the tile holds beside it, so a
// row's result depends on no other row. Whole-number sums are exact on all levels; float32 sums of
// two levels differ by rounding alone.
#pragma once

#include <cstdint>

#include "coppice/ops/cpu_features.h"

namespace coppice::ops {

inline constexpr int64_t kBlockRows = 16;
inline constexpr int64_t kTileRows = 8;
inline constexpr int64_t kActivationGroup = 32;

// One tile of quantised activations. Where neg_ says so, the sum of codes is negated; the others
// are sums of codes times their scale.
struct ActivationTile {
  int64_t rows = 0;  // 1 to kTileRows
  int8_t* codes = nullptr;
  float* scales = nullptr;
  int32_t* neg_sums32 = nullptr;
  int32_t* neg_sums16 = nullptr;
  float* sums32 = nullptr;
  float* sums16 = nullptr;
};

// A matrix of codes. The true scale is the stored one times `unit`, a power of two.
struct CodeBlocks {
  const uint8_t* data = nullptr;
  int64_t block_bytes = 0;
  int64_t scales_offset = 0;  // of a block's scales from its start
  int64_t rows = 0;
  int64_t cols = 0;
  int bits = 8;
  int group = 32;
  bool has_minimum = false;
  float unit = 1.0f;
};

// A matrix of bfloat16 values; `cols` counts the padding.
struct Bf16Blocks {
  const uint16_t* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;  // even
};

// float32 results: element (n, row) at data[n * stride + row].
struct Output {
  float* data = nullptr;
  int64_t stride = 0;
};

struct GemmKernels {
  // Quantises x [cols] into row `row` of the tile. A group with an infinity or NaN gets scale NaN.
  void (*quantise)(const float* x, int64_t cols, int64_t row, const ActivationTile& tile);
  // All rows of the tile times one block of 16 rows; writes those that exist.
  void (*multiply_codes)(const CodeBlocks& weights, int64_t block, const ActivationTile& tile,
                         const Output& out);
  // n rows of x [n, cols], float32, times one block; n is at most kTileRows.
  void (*multiply_bf16)(const Bf16Blocks& weights, int64_t block, const float* x, int64_t n,
                        const Output& out);
};

const GemmKernels& gemm_kernels(CpuLevel level);

// Defined where the compiler can make them; gemm_kernels() is the way to reach them.
const GemmKernels& portable_gemm_kernels();
const GemmKernels& avx2_gemm_kernels();
const GemmKernels& avx512_gemm_kernels();

}  // namespace coppice::ops
