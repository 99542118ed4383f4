#include "coppice/nn/linear.h"

#include <torch/torch.h>

#include <utility>

#include "coppice/core/error.h"
#include "coppice/ops/activation.h"

namespace coppice::nn {

Linear::Linear(int64_t in, int64_t out, bool bias) : in_(in), out_(out) {
  weight_ = register_parameter("weight", torch::empty({out, in}), /*requires_grad=*/false);
  if (bias) bias_ = register_parameter("bias", torch::empty({out}), /*requires_grad=*/false);
}

at::Tensor Linear::forward(const at::Tensor& x) {
  if (!packed_) {
    if (x.scalar_type() == weight_.scalar_type()) return at::linear(x, weight_, bias_);
    return at::linear(x, weight_.to(x.scalar_type()),
                      bias_.defined() ? bias_.to(x.scalar_type()) : bias_);
  }
  at::Tensor y = packed_->multiply(x);
  if (bias_.defined()) ops::add_bias(y, bias_);
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

std::vector<at::Tensor> forward_together(std::span<Linear* const> layers, const at::Tensor& x) {
  std::vector<const ops::PackedMatrix*> matrices;
  for (const Linear* layer : layers)
    if (layer->packed_) matrices.push_back(&*layer->packed_);
  std::vector<at::Tensor> products;
  if (!matrices.empty()) products = ops::PackedMatrix::multiply_together(matrices, x);
  std::vector<at::Tensor> results;
  auto product = products.begin();
  for (Linear* layer : layers) {
    if (!layer->packed_) {
      results.push_back(layer->forward(x));
      continue;
    }
    if (layer->bias_.defined()) ops::add_bias(*product, layer->bias_);
    results.push_back(std::move(*product++));
  }
  return results;
}

}  // namespace coppice::nn
