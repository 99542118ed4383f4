// Attention over rows of a paged pool out of plain ATen operations: gathers every row, then
// attention_reference. Any floating dtype and device; what paged_attention is measured against, and
// the path for whatever that does not cover.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "coppice/ops/paged_attention.h"

namespace coppice::ops {

struct PagedTensors {
  at::Tensor keys;       // [blocks, D, 16]
  at::Tensor values;     // [blocks, 16, D]
  at::Tensor positions;  // [blocks, 16] int32; read with a window alone
};

// q [N, Hq, D] -> [N, Hq, D], dtype of q. Sums are float64 where q or the pool is, else float32.
// Tokens that no row names get zeros.
at::Tensor paged_attention_reference(const PagedTensors& pool, std::span<const PagedRow> rows,
                                     const at::Tensor& q, int64_t group, double scale,
                                     int64_t window);

}  // namespace coppice::ops
