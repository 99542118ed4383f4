// When the CPU loops of this folder may stand in for ATen operations.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>

namespace coppice::ops {

// A gradient would flow through `t`, so that only differentiable operations may touch it.
inline bool records_gradient(const at::Tensor& t) {
  return c10::GradMode::is_enabled() && t.requires_grad();
}

// Float32 on the CPU, without a gradient. Says nothing about strides.
inline bool is_plain_float(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat && t.device().is_cpu() && !records_gradient(t);
}

// Rows of `values` numbers each that are worth handing to another thread in one piece.
inline int64_t rows_per_piece(int64_t values) {
  constexpr int64_t kPieceValues = 1 << 14;
  return values > 0 ? std::max<int64_t>(1, kPieceValues / values) : 1;
}

}  // namespace coppice::ops
