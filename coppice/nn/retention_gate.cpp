#include "coppice/nn/retention_gate.h"

#include <torch/torch.h>

#include "coppice/core/error.h"

namespace coppice::nn {
namespace {

void check(const RetentionGateOptions& options) {
  if (options.hidden_size <= 0 || options.width <= 0 || options.num_kv_heads <= 0)
    fail_argument(
        "retention gate: hidden size, width and KV heads must be above 0, got {}, {} and {}",
        options.hidden_size, options.width, options.num_kv_heads);
  if (options.hidden_layers != 1 && options.hidden_layers != 2)
    fail_argument("retention gate: expected 1 or 2 hidden layers, got {}", options.hidden_layers);
}

}  // namespace

RetentionGate::RetentionGate(const RetentionGateOptions& options, const RetentionGate* first)
    : options_(options) {
  check(options);
  const bool shared = options.variant == GateVariant::kShared;
  const int64_t heads = shared ? 1 : options.num_kv_heads;
  int64_t in = options.hidden_size;
  for (int64_t i = 1; i <= options.hidden_layers; ++i) {
    // The last hidden layer of the shared variant is Proj_{l,h}: one output per head.
    const bool per_head = shared && i == options.hidden_layers;
    const int64_t out = per_head ? options.width * options.num_kv_heads : options.width;
    hidden_.push_back(register_module(fmt::format("linear{}", i),
                                      std::make_shared<Linear>(in, out, /*bias=*/true)));
    in = out;
  }
  const bool common_head = options.variant != GateVariant::kLocal && first != nullptr;
  head_ = common_head ? first->head_
                      : std::make_shared<Linear>(options.width, heads, /*bias=*/false);
  register_module(fmt::format("linear{}", options.hidden_layers + 1), head_);
  bias_ = register_parameter(
      "bias", shared && first != nullptr ? first->bias_ : torch::empty({heads}),
      /*requires_grad=*/false);
}

at::Tensor RetentionGate::forward(const at::Tensor& x) {
  at::Tensor u = x;
  for (const auto& layer : hidden_) u = at::silu(layer->forward(u));
  at::Tensor z;
  if (options_.variant == GateVariant::kShared) {
    const int64_t heads = options_.num_kv_heads;
    z = head_->forward(u.reshape({-1, options_.width})).view({x.size(0), heads});
  } else {
    z = head_->forward(u);
  }
  if (z.scalar_type() != at::kDouble) z = z.to(at::kFloat);
  return at::log_sigmoid(z + bias_);
}

}  // namespace coppice::nn
