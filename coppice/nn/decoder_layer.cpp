#include "coppice/nn/decoder_layer.h"

#include <torch/torch.h>

namespace coppice::nn {

DecoderLayer::DecoderLayer(const DecoderLayerOptions& options, int64_t layer) {
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
  at::Tensor normed =
      delta.defined() ? input_layernorm_->add_forward(x, delta) : input_layernorm_->forward(x);
  const at::Tensor attended = self_attn_->forward(normed, angles, batch, backend);
  normed = post_attention_layernorm_->add_forward(x, attended);
  return mlp_->forward(normed);
}

}  // namespace coppice::nn
