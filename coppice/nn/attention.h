// Self-attention of one decoder layer, up to the backend: projections, norms, rotation, gate.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "coppice/nn/attention_backend.h"
#include "coppice/nn/gate.h"
#include "coppice/nn/linear.h"
#include "coppice/nn/rms_norm.h"
#include "coppice/ops/rope.h"

namespace coppice::nn {

struct AttentionOptions {
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;  // RMS norm of each head's q and k, before the rotation
  double rms_norm_eps = 1e-6;
  int64_t window = 0;  // newest keys a query sees; 0 is all
};

// Submodules: q_proj, k_proj, v_proj, o_proj; q_norm, k_norm where asked for; retention_gate once
// attached.
class Attention final : public torch::nn::Module {
 public:
  Attention(const AttentionOptions& options, int64_t layer);

  // x [N, C], the input norm's output -> [N, C].
  at::Tensor forward(const at::Tensor& x, const ops::RopeAngles& angles, const Batch& batch,
                     AttentionBackend& backend);

  // Throws kInvalidArgument when a gate is there already or its sizes are not this layer's.
  void attach_gate(std::shared_ptr<Gate> gate);
  const std::shared_ptr<Gate>& gate() const { return gate_; }
  bool is_packed() const { return q_proj_->is_packed(); }

 private:
  AttentionOptions options_;
  int64_t layer_;
  std::shared_ptr<Linear> q_proj_, k_proj_, v_proj_, o_proj_;
  std::shared_ptr<RmsNorm> q_norm_, k_norm_;
  std::shared_ptr<Gate> gate_;
};

}  // namespace coppice::nn
