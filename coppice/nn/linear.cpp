#include "coppice/nn/linear.h"

#include <torch/torch.h>

#include <utility>

#include "coppice/core/error.h"

namespace coppice::nn {

Linear::Linear(int64_t in, int64_t out, bool bias) : in_(in), out_(out) {
  weight_ = register_parameter("weight", torch::empty({out, in}), /*requires_grad=*/false);
  if (bias) bias_ = register_parameter("bias", torch::empty({out}), /*requires_grad=*/false);
}

at::Tensor Linear::forward(const at::Tensor& x) {
  if (!packed_) return at::linear(x, weight_, bias_);
  at::Tensor y = packed_->multiply(x);
  if (bias_.defined()) y.add_(bias_);
  return y;
}

void Linear::pack(ops::PackedMatrix matrix) {
  if (matrix.rows() != out_ || matrix.cols() != in_)
    fail_argument("linear layer: expected a matrix [{}, {}], got [{}, {}]", out_, in_,
                  matrix.rows(), matrix.cols());
  packed_ = std::move(matrix);
  if (parameters_.contains("weight")) parameters_.erase("weight");
  weight_ = at::Tensor();
}

}  // namespace coppice::nn
