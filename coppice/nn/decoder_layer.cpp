#include "coppice/nn/decoder_layer.h"

#include <torch/torch.h>

#include <utility>
#include <vector>

#include "coppice/nn/recompute.h"

namespace coppice::nn {

DecoderLayer::DecoderLayer(const DecoderLayerOptions& options, int64_t layer) : layer_(layer) {
  const int64_t hidden = options.attention.hidden_size;
  const double eps = options.attention.rms_norm_eps;
  input_layernorm_ = register_module("input_layernorm", std::make_shared<RmsNorm>(hidden, eps));
  self_attn_ = register_module("self_attn", std::make_shared<Attention>(options.attention, layer));
  post_attention_layernorm_ =
      register_module("post_attention_layernorm", std::make_shared<RmsNorm>(hidden, eps));
  mlp_ = register_module(
      "mlp", std::make_shared<GatedMlp>(hidden, options.intermediate_size, options.mlp_bias));
}

at::Tensor DecoderLayer::forward(at::Tensor& x, const at::Tensor& delta,
                                 const ops::RopeAngles& angles, const Batch& batch,
                                 AttentionBackend& backend) {
  const auto& gate = self_attn_->gate();
  if (!recompute_ || !torch::GradMode::is_enabled() || gate == nullptr)
    return run(x, delta, angles, batch, backend);
  // A copy of the batch: the backward pass may come when that of the forward pass is gone.
  const auto segment = [this, angles, batch, &backend](const std::vector<at::Tensor>& inputs) {
    at::Tensor stream = torch::GradMode::is_enabled() ? inputs[0] : inputs[0].clone();
    const at::Tensor next = run(stream, inputs[1], angles, batch, backend);
    return std::vector<at::Tensor>{stream, next};
  };
  std::vector<at::Tensor> results = recompute(segment, {x, delta}, gate->parameters().front());
  x = std::move(results[0]);
  return std::move(results[1]);
}

at::Tensor DecoderLayer::run(at::Tensor& x, const at::Tensor& delta, const ops::RopeAngles& angles,
                             const Batch& batch, AttentionBackend& backend) {
  at::Tensor normed =
      delta.defined() ? input_layernorm_->add_forward(x, delta) : input_layernorm_->forward(x);
  if (observer_) observer_(layer_, x, normed);
  const at::Tensor attended = self_attn_->forward(normed, angles, batch, backend);
  normed = post_attention_layernorm_->add_forward(x, attended);
  return mlp_->forward(normed);
}

}  // namespace coppice::nn
