// The feed-forward block: down(silu(gate(x)) * up(x)).
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "coppice/nn/linear.h"

namespace coppice::nn {

// Submodules: gate_proj, up_proj, down_proj.
class GatedMlp final : public torch::nn::Module {
 public:
  GatedMlp(int64_t hidden_size, int64_t intermediate_size, bool bias);

  at::Tensor forward(const at::Tensor& x);  // [N, C] -> [N, C]

 private:
  std::shared_ptr<Linear> gate_proj_, up_proj_, down_proj_;
};

}  // namespace coppice::nn
