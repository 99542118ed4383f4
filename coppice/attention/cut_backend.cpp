#include "coppice/attention/cut_backend.h"

#include <ATen/TensorOperators.h>

#include <utility>

#include "coppice/core/error.h"
#include "coppice/ops/retention_attention.h"

namespace coppice {

CutBackend::CutBackend(at::Tensor pressure, at::Tensor fades, int64_t sharpness)
    : pressure_(std::move(pressure)), fades_(std::move(fades)), sharpness_(sharpness) {}

at::Tensor CutBackend::forward(const AttentionInput& input, const Batch& batch) {
  if (!input.log_beta.defined() || input.window > 0)
    fail_argument("layer {}: attention under a budget needs {}", input.layer,
                  input.window > 0 ? "layers that see all keys, and this one has a window"
                                   : "the log beta of a gate, and this layer has none");
  return ops::cut_attention(input.q, input.k, input.v, input.log_beta * fades_, pressure_,
                            batch.cu_seqlens, input.scale, sharpness_);
}

}  // namespace coppice
