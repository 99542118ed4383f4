// How hard a budget presses on the entries of all layers and heads: the one cut that eviction makes
// through them, found for training (ops/retention_attention.h, cut_attention).
//
// At a position p of a document, with ages p - i and R rows (layers times KV heads),
//
//   held(u) = sum over rows and i <= p of 1 / (1 + ((p - i) |log beta_i| u)^sharpness)
//
// falls in u, and the pressure is the u at which it equals the budget, budget x R; 0 while the
// document has no more tokens than the budget. One value holds for kPressureBlock positions, taken
// at the middle one.                                                         (docs/maths.md 23, 24)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace coppice::ops {

inline constexpr int64_t kPressureBlock = 128;

// log_beta [N, R] float32 or float64, <= 0, on the CPU; documents as in retention_attention.
// budgets: entries per row, above 0, one for each document. -> pressure [N], dtype of log_beta, at
// most 1e15 (entries that never fade may outnumber the budget). Differentiable once in log_beta, by
// the implicit function. Sharpness as in cut_attention. Memory O(N R); the same bits for any number
// of threads. Throws kInvalidArgument on bad arguments.
at::Tensor budget_pressure(const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                           std::span<const double> budgets, int64_t sharpness);

// Soft entries of each row at position p of the document [begin, end): `held` of above, row by row.
// log_beta [N, R] -> [R]. In plain ATen operations, without a gradient.
at::Tensor held_under_pressure(const at::Tensor& log_beta, int64_t begin, int64_t p,
                               double pressure, int64_t sharpness);

}  // namespace coppice::ops
