// y = x W^T + b, the weight held either as a dense parameter or packed for fast inference.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coppice/ops/packed_matrix.h"

namespace coppice::nn {

// Parameters, named as in checkpoints: weight [out, in], absent once packed; bias [out], where the
// layer has one. New ones are uninitialised and take no gradient until asked to.
class Linear final : public torch::nn::Module {
 public:
  Linear(int64_t in, int64_t out, bool bias);

  // x [N, in] -> [N, out]. A packed layer takes and gives float32 and passes no gradient on. A
  // dense one whose weight has another type than x multiplies in that of x, and passes the gradient
  // on to the weight as it is: float32 masters under bfloat16 activations.
  at::Tensor forward(const at::Tensor& x);

  // Replaces the dense weight. Throws kInvalidArgument when the shape differs.
  void pack(ops::PackedMatrix matrix);
  bool is_packed() const { return packed_.has_value(); }
  const ops::PackedMatrix& packed() const { return *packed_; }  // REQUIRES: is_packed()

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  const at::Tensor& weight() const { return weight_; }  // undefined once packed
  const at::Tensor& bias() const { return bias_; }      // undefined where the layer has none

 private:
  friend std::vector<at::Tensor> forward_together(std::span<Linear* const> layers,
                                                  const at::Tensor& x);

  int64_t in_, out_;
  at::Tensor weight_, bias_;
  std::optional<ops::PackedMatrix> packed_;
};

// forward(x) of several layers that read the same x, in their order. Packed ones share one product,
// with the same result bit for bit.
std::vector<at::Tensor> forward_together(std::span<Linear* const> layers, const at::Tensor& x);

}  // namespace coppice::nn
