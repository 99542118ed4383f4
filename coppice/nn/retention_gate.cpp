#include "coppice/nn/retention_gate.h"

#include <torch/torch.h>

#include <algorithm>
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

constexpr int64_t kFewTokens = 8;  // not worth sharing out

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

at::Tensor RetentionGate::after_first_layer(at::Tensor u) {
  const int64_t tokens = u.size(0);
  if (tokens <= kFewTokens && is_packed() && u.is_contiguous()) {
    at::Tensor log_beta = at::empty({tokens, options_.num_kv_heads}, at::kFloat);
    finish_rows(u.mutable_data_ptr<float>(), tokens, log_beta.mutable_data_ptr<float>());
    return log_beta;
  }
  u = ops::silu(std::move(u));
  for (std::size_t i = 1; i < hidden_.size(); ++i) u = ops::silu(hidden_[i]->forward(u));
  // In the shared variant each head has its own u, and w is one row.
  if (options_.variant == GateVariant::kShared) u = u.reshape({-1, options_.width});
  if (u.scalar_type() != at::kDouble) u = u.to(at::kFloat);
  const at::Tensor z = head_->forward(u).view({tokens, options_.num_kv_heads});
  return ops::log_sigmoid(z, bias_);
}

void RetentionGate::finish_rows(float* u, int64_t tokens, float* log_beta) const {
  ops::silu_rows(u, nullptr, tokens, hidden_.front()->out());
  static thread_local std::vector<float> next, z;
  for (std::size_t i = 1; i < hidden_.size(); ++i) {
    next.resize(static_cast<std::size_t>(tokens * hidden_[i]->out()));  // of at most 2 layers
    hidden_[i]->packed().multiply(u, tokens, next.data());
    ops::silu_rows(next.data(), hidden_[i]->bias().const_data_ptr<float>(), tokens,
                   hidden_[i]->out());
    u = next.data();
  }
  const int64_t heads = options_.num_kv_heads;
  const bool shared = options_.variant == GateVariant::kShared;
  z.resize(static_cast<std::size_t>(tokens * heads));
  head_->packed().multiply(u, shared ? tokens * heads : tokens, z.data());
  ops::log_sigmoid_rows(z.data(), bias_.const_data_ptr<float>(), bias_.size(0) == 1, tokens, heads,
                        log_beta);
}

void RetentionGate::pack() {
  std::vector<std::shared_ptr<Linear>> layers = hidden_;
  layers.push_back(head_);
  pack_layers(layers);  // the head may be packed by an earlier layer's gate
}

bool RetentionGate::is_packed() const {
  return head_->is_packed() &&
         std::all_of(hidden_.begin(), hidden_.end(), [](const auto& l) { return l->is_packed(); });
}

}  // namespace coppice::nn
