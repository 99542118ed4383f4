// The capacity term of the training loss: how much more the gates keep than a budget allows.
//
//   S[t,l,h] = sum over i <= t of the same document of exp((t - i) log beta[i,l,h])  (docs/maths.md
//   13)
//
// is the soft number of entries that row (l, h) holds at position t. With M entries per row and p
// the position of t in its document, the excess is normalised by the largest it can be:
//
//   kGlobal   c[t]     = max(0, sum over l,h of S - M L Hkv) / (L Hkv (p + 1 - M))         (14)
//   kLocal    c[t,l,h] = max(0, S - M) / (p + 1 - M)                                       (15)
//
// with c = 0 where p + 1 <= M, and the loss is the mean of c over all of its elements.
// Source: arXiv:2605.09649, capacity loss.
// Differs from the paper: a mean over positions, so that its weight does not grow with the length.
// Differs from the published code, which divides by L Hkv max(1, p - M): at p = M that weighs one
// position per document L Hkv times; and which averages over violating positions alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace coppice::ops {

enum class CapacityScope {
  kGlobal,  // rows of all layers and heads share L Hkv M entries
  kLocal,   // every row has M
};

// log_beta [N, L, Hkv] float32 or float64, <= 0. Documents as in retention_attention.
// -> scalar, dtype of log_beta. Differentiable once. budget_entries M > 0, fractions allowed.
// On the CPU: memory O(N), the same bits for any number of threads, and terms below e^-20 (float64:
// e^-40) left out. Elsewhere capacity_loss_reference. Throws kInvalidArgument on bad arguments.
at::Tensor capacity_loss(const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                         double budget_entries, CapacityScope scope);

// The same in plain ATen operations, [S, S] per row: any device, differentiated by autograd.
at::Tensor capacity_loss_reference(const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                                   double budget_entries, CapacityScope scope);

}  // namespace coppice::ops
