// Attention of training: a causal softmax per packed document in which every key fades with age.
//
//   a[t,i] = scale q_t . k_i + (t - i) log beta_i        i <= t, same document     (docs/maths.md
//   9)
//
// The diagonal has no bias, and log beta = 0 is plain causal attention. Query head h reads KV head
// h / (Hq / Hkv); the gradient of log beta is summed over the query heads of its group.
// Source: arXiv:2605.09649, the training forward. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace coppice::ops {

// q [N, Hq, D], k and v [N, Hkv, D], one floating dtype; log_beta [N, Hkv] float32 (or float64),
// <= 0. Document b holds tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1; offsets run from 0 to N and
// rise. -> [N, Hq, D], dtype of q. Differentiable once in q, k, v and log_beta. Memory O(N): tiles,
// and the log-sum-exp of each query, kept for the backward pass, which recomputes the weights.
//
// Float32 on a CPU with AVX-512, and bfloat16 on one that also multiplies it, run kernels of ours:
// the same bits for any number of threads, sums in float32, and with bfloat16 the weights rounded
// to it before their products. Everything else takes ATen operations on blocks of queries. Throws
// kInvalidArgument on shapes that disagree.
at::Tensor retention_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                               double scale);

// Attention under a budget, made smooth: a key fades as its score falls past the cut of its query.
//
//   a[t,i] = scale q_t . k_i - log(1 + ((t - i) |log beta_i| pressure_t)^sharpness) (docs/maths.md
//   18)
//
// Eviction keeps the entries whose (t - i) |log beta_i| lies below some bound; 1 / pressure_t is
// that bound (ops/budget_pressure.h finds it). Pressure 0 is plain causal attention, log beta = 0 a
// key that is always kept. Everything else as above; differentiable in the pressure as well.
//
// pressure [N], >= 0, a floating type; sharpness 2, 4, 8, 16 or 32.
at::Tensor cut_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& log_beta, const at::Tensor& pressure,
                         std::span<const int64_t> cu_seqlens, double scale, int64_t sharpness);

// retention_attention in plain ATen operations, S x S at once: any device, differentiated by
// autograd.
at::Tensor retention_attention_reference(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& log_beta,
                                         std::span<const int64_t> cu_seqlens, double scale);

}  // namespace coppice::ops
