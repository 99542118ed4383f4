#include "coppice/nn/rms_norm.h"

#include <torch/torch.h>

#include "coppice/ops/rms_norm.h"

namespace coppice::nn {

RmsNorm::RmsNorm(int64_t size, double eps) : eps_(eps) {
  weight_ = register_parameter("weight", torch::empty({size}), /*requires_grad=*/false);
}

at::Tensor RmsNorm::forward(const at::Tensor& x) { return ops::rms_norm(x, weight_, eps_); }

at::Tensor RmsNorm::add_forward(at::Tensor& x, const at::Tensor& delta) {
  if (!torch::GradMode::is_enabled()) return ops::add_rms_norm_(x, delta, weight_, eps_);
  x = x + delta;
  return forward(x);
}

}  // namespace coppice::nn
