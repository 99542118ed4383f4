#include "coppice/attention/retention_backend.h"

#include "coppice/core/error.h"
#include "coppice/ops/retention_attention.h"

namespace coppice {

at::Tensor RetentionBackend::forward(const AttentionInput& input, const Batch& batch) {
  if (!input.log_beta.defined())
    fail_argument(
        "layer {}: retention attention needs the log beta of a gate, and this layer has none",
        input.layer);
  if (input.window > 0)
    fail_argument(
        "layer {}: retention attention is for layers that see all keys, got a window of {} tokens",
        input.layer, input.window);
  const auto layer = static_cast<std::size_t>(input.layer);
  if (log_betas_.size() <= layer) log_betas_.resize(layer + 1);
  log_betas_[layer] = input.log_beta;
  return ops::retention_attention(input.q, input.k, input.v, input.log_beta, batch.cu_seqlens,
                                  input.scale);
}

}  // namespace coppice
