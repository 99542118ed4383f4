// Root-mean-square norm with a learned scale.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace coppice::nn {

// Parameter: weight [size].
class RmsNorm final : public torch::nn::Module {
 public:
  RmsNorm(int64_t size, double eps);

  // x [..., size] -> the same shape.
  at::Tensor forward(const at::Tensor& x);
  // x += delta, then forward(x). Writes over x where no gradient is recorded.
  at::Tensor add_forward(at::Tensor& x, const at::Tensor& delta);

 private:
  double eps_;
  at::Tensor weight_;
};

}  // namespace coppice::nn
