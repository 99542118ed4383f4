#include "coppice/nn/attention.h"

#include <torch/torch.h>

#include <cmath>
#include <utility>
#include <vector>

#include "coppice/core/error.h"

namespace coppice::nn {
Attention::Attention(const AttentionOptions& options, int64_t layer)
    : options_(options), layer_(layer) {
  const int64_t hidden = options.hidden_size;
  const int64_t q_size = options.num_heads * options.head_dim;
  const int64_t kv_size = options.num_kv_heads * options.head_dim;
  q_proj_ = register_module("q_proj", std::make_shared<Linear>(hidden, q_size, options.qkv_bias));
  k_proj_ = register_module("k_proj", std::make_shared<Linear>(hidden, kv_size, options.qkv_bias));
  v_proj_ = register_module("v_proj", std::make_shared<Linear>(hidden, kv_size, options.qkv_bias));
  o_proj_ =
      register_module("o_proj", std::make_shared<Linear>(q_size, hidden, options.output_bias));
  if (!options.qk_norm) return;
  q_norm_ =
      register_module("q_norm", std::make_shared<RmsNorm>(options.head_dim, options.rms_norm_eps));
  k_norm_ =
      register_module("k_norm", std::make_shared<RmsNorm>(options.head_dim, options.rms_norm_eps));
}

at::Tensor Attention::forward(const at::Tensor& x, const ops::RopeAngles& angles,
                              const Batch& batch, AttentionBackend& backend) {
  const int64_t tokens = x.size(0);
  const int64_t head_dim = options_.head_dim;
  AttentionInput input;
  input.layer = layer_;
  // The gate's first layer reads the same x, and shares the product.
  Linear* const readers[] = {q_proj_.get(), k_proj_.get(), v_proj_.get(),
                             gate_ ? &gate_->first_layer() : nullptr};
  std::vector<at::Tensor> read = forward_together({readers, gate_ ? 4u : 3u}, x);
  input.q = read[0].view({tokens, options_.num_heads, head_dim});
  input.k = read[1].view({tokens, options_.num_kv_heads, head_dim});
  input.v = read[2].view({tokens, options_.num_kv_heads, head_dim});
  if (q_norm_) {
    input.q = q_norm_->forward(input.q);
    input.k = k_norm_->forward(input.k);
  }
  input.q = ops::apply_rope(std::move(input.q), angles);
  input.k = ops::apply_rope(std::move(input.k), angles);
  if (gate_) input.log_beta = gate_->after_first_layer(std::move(read[3]));
  input.scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  input.window = options_.window;
  const at::Tensor attended = backend.forward(input, batch);
  return o_proj_->forward(attended.reshape({tokens, options_.num_heads * head_dim}));
}

void Attention::attach_gate(std::shared_ptr<Gate> gate) {
  if (gate_) fail_argument("layer {}: a gate is attached already", layer_);
  if (gate->first_layer().in() != options_.hidden_size ||
      gate->num_kv_heads() != options_.num_kv_heads)
    fail_argument("layer {}: expected a gate for hidden size {} and {} KV heads, got {} and {}",
                  layer_, options_.hidden_size, options_.num_kv_heads, gate->first_layer().in(),
                  gate->num_kv_heads());
  gate_ = register_module("retention_gate", std::move(gate));
}

}  // namespace coppice::nn
