// The inner loops of PackedMatrix: one set per CpuLevel, on raw memory.
//
// Weights lie in blocks of 16 rows. A block of codes is one sequential stream: for every one or two
// groups of columns, a line of 64 bytes with their scales, then their codes line by line:
//
//   scales  with minimums     float16 scale [16], minimum [16] of one group
//           without           float16 scale [16] of group 2i, scale [16] of group 2i + 1
//   8 bit   byte 4r + i               column 4c + i of row r            (4 columns a line)
//   4 bit   byte 4r + i, low half     column 8c + i of row r            (8 columns a line)
//           byte 4r + i, high half    column 8c + 4 + i of row r
//
// and in a block of bfloat16 values, 64 bytes hold two columns: value 2r + i is column 2p + i of
// row r; an odd last column is followed by zeros.
//
// Activations of the code kernels are int16 with a float32 scale per 32 columns, grouped in tiles
// of up to kTileRows rows. With `rows` rows in a tile, its parts for column group g are
//   codes [g][row][32]   scales [g][row]   sums32 [g][row]   sums16 [2g], [2g + 1] [row]
// Of every four columns the middle two are exchanged (activation_place): masks and shifts of 16
// bits then turn a line of weights into pairs that meet their pairs of x, 0 and 2 or 1 and 3. The
// sum of 32 products stays below 2^28.
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

// Where column `col` of a group stands among its codes.
inline constexpr int activation_place(int col) {
  const int in_four = col % 4;
  return in_four == 1 ? col + 1 : in_four == 2 ? col - 1 : col;
}

// One tile of quantised activations. Where neg_ says so, the sum of codes is negated; the others
// are sums of codes times their scale.
struct ActivationTile {
  int64_t rows = 0;  // 1 to kTileRows
  int16_t* codes = nullptr;
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
  int64_t rows = 0;
  int64_t cols = 0;
  int bits = 8;
  int group = 32;
  bool has_minimum = false;
  float unit = 1.0f;

  int64_t groups() const { return cols / group; }
  int64_t groups_per_line() const { return has_minimum ? 1 : 2; }  // of scales
  int64_t group_bytes() const { return group * 2 * bits; }         // codes of 16 rows
  // From a block's start to the scales and to the codes of a group.
  int64_t scales_at(int64_t g) const { return line_at(g) + g % groups_per_line() * 32; }
  int64_t codes_at(int64_t g) const {
    return line_at(g) + 64 + g % groups_per_line() * group_bytes();
  }
  int64_t line_at(int64_t g) const {
    return g / groups_per_line() * (64 + groups_per_line() * group_bytes());
  }
};

// Code of a group's column `col` of row `lane`. `block` is where the row's block starts.
inline int code_at(const CodeBlocks& w, const uint8_t* block, int64_t lane, int64_t g,
                   int64_t col) {
  const uint8_t* codes = block + w.codes_at(g) + lane * 4 + col % 4;
  if (w.bits == 8) return codes[col / 4 * 64];
  const uint8_t byte = codes[col / 8 * 64];
  return col % 8 < 4 ? byte & 15 : byte >> 4;
}

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
  // Quantises the groups first .. last - 1 of x [cols] into row `row` of the tile. A group with an
  // infinity or NaN gets scale NaN.
  void (*quantise)(const float* x, int64_t first, int64_t last, int64_t row,
                   const ActivationTile& tile);
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
