// What the sibling files of one instruction set each offer to paged_attention.cpp.
#pragma once

#include <cstdint>

#include "coppice/ops/paged_attention.h"

namespace coppice::ops {

// Softmax sums of n queries over some entries: maximum logit (base 2), sum of weights, weighted sum
// of values. Nothing seen: maximum -inf, sum 0.
struct PagedState {
  float* max;  // [n]
  float* sum;  // [n]
  float* acc;  // [n, padded D]
};

// Queries that share one KV head, against at most kPieceEntries entries of a row.
struct PagedPiece {
  const PagedPool* pool;
  const int32_t* blocks;        // of the piece's first entry
  int64_t blocks_left;          // of the row, from there on
  int64_t num_queries;          // n
  const float* q;               // [n, D], times scale and log2(e)
  const int64_t* visible;       // [n]: entries of the piece before the query's end; may be <= 0
  const int64_t* min_position;  // [n]: the oldest position in the window; null is no window
};

struct PagedKernels {
  void (*fold)(const PagedPiece& piece, const PagedState& state);  // overwrites state
  // total = total merged with next, for n queries
  void (*merge)(int64_t n, int64_t head_dim, const PagedState& total, const PagedState& next);
};

// 2^r = 1 + r (c0 + r (c1 + ...)) for |r| <= 1/2, to 2e-9 before rounding: a minimax fit.
inline constexpr float kExp2[6] = {0x1.62e430p-1F, 0x1.ebfbdcp-3F,  0x1.c6aee8p-5F,
                                   0x1.3b2d4cp-7F, 0x1.5f3e54p-10F, 0x1.41fbbcp-13F};

// Row length of acc: whole vectors.
inline int64_t padded_head_dim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

const PagedKernels& portable_paged_kernels();
const PagedKernels& avx2_paged_kernels();
const PagedKernels& avx512_paged_kernels();

}  // namespace coppice::ops
