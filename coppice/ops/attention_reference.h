// Softmax attention out of plain ATen operations: the slow path that every fast one is measured
// against. Differentiable, any floating dtype and device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace coppice::ops {

// Which keys each of T queries sees when the T newest of L keys are the queries' own:
// query t sits at L - T + t and sees keys up to itself, the newest `window` of them (0: all).
// -> [T, L] bool.
at::Tensor causal_mask(int64_t queries, int64_t keys, int64_t window,
                       c10::Device device = c10::Device(c10::kCPU));

// q [T, Hq, D], k and v [L, Hkv, D] -> [T, Hq, D]. Query head h reads KV head h / (Hq / Hkv).
// `visible` is bool, [T, L] or [Hkv, T, L]. `bias` is added to the scaled logits: [Hkv, T, L], or
// undefined. A query that sees no key gets zeros. Scratch: two tensors [Hq, T, L].
at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               double scale, const at::Tensor& visible,
                               const at::Tensor& bias = {});

}  // namespace coppice::ops
