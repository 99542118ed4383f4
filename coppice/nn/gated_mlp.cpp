#include "coppice/nn/gated_mlp.h"

#include <torch/torch.h>

#include <utility>
#include <vector>

#include "coppice/ops/activation.h"

namespace coppice::nn {

GatedMlp::GatedMlp(int64_t hidden_size, int64_t intermediate_size, bool bias) {
  gate_proj_ =
      register_module("gate_proj", std::make_shared<Linear>(hidden_size, intermediate_size, bias));
  up_proj_ =
      register_module("up_proj", std::make_shared<Linear>(hidden_size, intermediate_size, bias));
  down_proj_ =
      register_module("down_proj", std::make_shared<Linear>(intermediate_size, hidden_size, bias));
}

at::Tensor GatedMlp::forward(const at::Tensor& x) {
  Linear* const layers[] = {gate_proj_.get(), up_proj_.get()};
  std::vector<at::Tensor> both = forward_together(layers, x);
  return down_proj_->forward(ops::silu_mul(std::move(both[0]), both[1]));
}

}  // namespace coppice::nn
