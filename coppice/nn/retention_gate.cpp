#include "coppice/nn/retention_gate.h"

#include <torch/torch.h>

#include <cstddef>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/ops/activation.h"

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
  head_ =
      common_head ? first->head_ : std::make_shared<Linear>(options.width, heads, /*bias=*/false);
  register_module(fmt::format("linear{}", options.hidden_layers + 1), head_);
  bias_ =
      register_parameter("bias", shared && first != nullptr ? first->bias_ : torch::empty({heads}),
                         /*requires_grad=*/false);
}

at::Tensor RetentionGate::forward(const at::Tensor& x) {
  return after_first_layer(first_layer().forward(x));
}

at::Tensor RetentionGate::after_first_layer(at::Tensor u) {
  const int64_t tokens = u.size(0);
  u = ops::silu(std::move(u));
  for (std::size_t i = 1; i < hidden_.size(); ++i) u = ops::silu(hidden_[i]->forward(u));
  // In the shared variant each head has its own u, and w is one row.
  if (options_.variant == GateVariant::kShared) u = u.reshape({-1, options_.width});
  if (u.scalar_type() != at::kDouble) u = u.to(at::kFloat);
  const at::Tensor z = head_->forward(u).view({tokens, options_.num_kv_heads});
  return ops::log_sigmoid(z, bias_);
}

void RetentionGate::pack() {
  std::vector<std::shared_ptr<Linear>> layers = hidden_;
  layers.push_back(head_);
  for (const auto& layer : layers) {
    if (layer->is_packed()) continue;  // a head that an earlier layer's gate has packed
    const at::Tensor rounded = layer->weight().to(at::kBFloat16).contiguous();
    if (!at::equal(rounded.to(at::kFloat), layer->weight())) continue;
    StoredTensor stored;
    stored.type = StorageType::kBF16;
    stored.shape = rounded.sizes().vec();
    stored.bytes = {static_cast<const std::byte*>(rounded.const_data_ptr()), rounded.nbytes()};
    layer->pack(ops::PackedMatrix::pack(stored));
  }
}

}  // namespace coppice::nn
