// One layer of a decoder: x + attention(norm(x)), then x + mlp(norm(x)).
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

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

  // Whether a pass that records gradients keeps this layer's inputs alone and computes the rest
  // again in the backward pass (nn/recompute.h). For layers with a gate, which must take gradients.
  void set_recompute(bool on) { recompute_ = on; }

  // Is shown what each pass brings to this layer's attention: the residual stream [N, C] and its
  // norm, which feeds q, k, v and the gate. Empty: nobody looks. It must keep copies, not views.
  using Observer =
      std::function<void(int64_t layer, const at::Tensor& residual, const at::Tensor& normed)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  Attention& self_attn() { return *self_attn_; }

 private:
  at::Tensor run(at::Tensor& x, const at::Tensor& delta, const ops::RopeAngles& angles,
                 const Batch& batch, AttentionBackend& backend);

  int64_t layer_;
  bool recompute_ = false;
  Observer observer_;
  std::shared_ptr<RmsNorm> input_layernorm_, post_attention_layernorm_;
  std::shared_ptr<Attention> self_attn_;
  std::shared_ptr<GatedMlp> mlp_;
};

}  // namespace coppice::nn
