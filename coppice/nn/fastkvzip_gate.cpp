#include "coppice/nn/fastkvzip_gate.h"

#include <torch/torch.h>

#include <utility>
#include <vector>

#include "coppice/core/error.h"

namespace coppice::nn {

FastKvzipGate::FastKvzipGate(const FastKvzipGateOptions& options) : options_(options) {
  const auto& o = options;
  if (o.hidden_size <= 0 || o.width <= 0 || o.sinks <= 0 || o.num_kv_heads <= 0 ||
      o.num_query_heads <= 0 || o.num_query_heads % o.num_kv_heads != 0)
    fail_argument(
        "fastkvzip gate: expected sizes above 0 and query heads a multiple of the KV heads, got "
        "hidden size {}, width {}, {} sinks, {} query heads, {} KV heads",
        o.hidden_size, o.width, o.sinks, o.num_query_heads, o.num_kv_heads);
  projection_ = register_module(
      "projection",
      std::make_shared<Linear>(o.hidden_size, (o.num_query_heads + o.num_kv_heads) * o.width,
                               /*bias=*/false));
  const auto parameter = [this](const char* name, at::IntArrayRef shape) {
    return register_parameter(name, torch::empty(shape), /*requires_grad=*/false);
  };
  sink_gate_.query_bias = parameter("query_bias", {o.num_query_heads * o.width});
  sink_gate_.query_norm = parameter("query_norm", {o.width});
  sink_gate_.key_norm = parameter("key_norm", {o.width});
  sink_gate_.sinks = parameter("sinks", {o.num_kv_heads, o.sinks, o.width});
  sink_gate_.bias = parameter("bias", {o.num_query_heads});
}

at::Tensor FastKvzipGate::after_first_layer(at::Tensor u) {
  if (u.scalar_type() != at::kDouble) u = u.to(at::kFloat);
  return ops::sink_gate_score(u, sink_gate_);
}

void FastKvzipGate::pack() {
  const std::vector<std::shared_ptr<Linear>> layers = {projection_};
  pack_layers(layers);
}

}  // namespace coppice::nn
