// One layer of a decoder: x + attention(norm(x)), then x + mlp(norm(x)).
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "coppice/nn/attention.h"
#include "coppice/nn/gated_mlp.h"
#include "coppice/nn/rms_norm.h"

namespace coppice::nn {

struct DecoderLayerOptions {
  AttentionOptions attention;
  int64_t intermediate_size = 0;
  bool mlp_bias = false;
};

// Submodules: input_layernorm, self_attn, post_attention_layernorm, mlp.
class DecoderLayer final : public torch::nn::Module {
 public:
  DecoderLayer(const DecoderLayerOptions& options, int64_t layer);

  // `x` [N, C] is the residual stream and `delta` [N, C] what the layer before adds to it
  // (undefined at the first layer). Updates x, where no gradient is recorded in place, and returns
  // the next delta: so each addition is fused with the norm that follows it.
  at::Tensor forward(at::Tensor& x, const at::Tensor& delta, const ops::RopeAngles& angles,
                     const Batch& batch, AttentionBackend& backend);

  Attention& self_attn() { return *self_attn_; }

 private:
  std::shared_ptr<RmsNorm> input_layernorm_, post_attention_layernorm_;
  std::shared_ptr<Attention> self_attn_;
  std::shared_ptr<GatedMlp> mlp_;
};

}  // namespace coppice::nn
