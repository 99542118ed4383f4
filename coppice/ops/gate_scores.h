// What gates with a score that does not fade compute behind their first product (docs/maths.md 25,
// 26). Float32 on the CPU without a gradient goes through plain loops, whose result for a token is
// the same bits whatever tokens are beside it; all else through ATen operations.
#pragma once

#include <ATen/core/Tensor.h>

namespace coppice::ops {

// x Phi(x) with Phi the normal distribution function, element by element. May write over `x`.
at::Tensor gelu(at::Tensor x);

// The attention of one layer's Fast KVzip gate, with g its width.
struct SinkGate {
  at::Tensor query_bias;  // [Hq g]
  at::Tensor query_norm;  // [g], weight of an RMS norm
  at::Tensor key_norm;    // [g]
  at::Tensor sinks;       // [Hkv, S, g]
  at::Tensor bias;        // [Hq]
};
inline constexpr double kSinkGateEps = 1e-6;  // of the norms

// u [N, (Hq + Hkv) g], queries first -> ln s [N, Hkv] <= 0, of the type of u. Throws
// kInvalidArgument on shapes that disagree.
at::Tensor sink_gate_score(const at::Tensor& u, const SinkGate& gate);

// The same in ATen operations: differentiable, any floating dtype and device.
at::Tensor sink_gate_score_reference(const at::Tensor& u, const SinkGate& gate);

}  // namespace coppice::ops
