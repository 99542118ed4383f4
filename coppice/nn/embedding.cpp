#include "coppice/nn/embedding.h"

#include <torch/torch.h>

#include <utility>

#include "coppice/core/error.h"

namespace coppice::nn {
namespace {

void check_ids(const at::Tensor& ids, int64_t vocab_size) {
  const at::Tensor host = ids.to(at::kCPU).contiguous();
  const int64_t* id = host.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < host.numel(); ++i)
    if (id[i] < 0 || id[i] >= vocab_size)
      fail_argument("token id {} is outside the vocabulary of {}", id[i], vocab_size);
}

}  // namespace

Embedding::Embedding(int64_t vocab_size, int64_t hidden_size)
    : vocab_size_(vocab_size), hidden_size_(hidden_size) {
  weight_ = register_parameter("weight", torch::empty({vocab_size, hidden_size}),
                               /*requires_grad=*/false);
}

at::Tensor Embedding::forward(const at::Tensor& ids) {
  check_ids(ids, vocab_size_);
  return packed_ ? packed_->gather_rows(ids) : at::embedding(weight_, ids);
}

at::Tensor Embedding::project(const at::Tensor& hidden) {
  return packed_ ? packed_->multiply(hidden.contiguous()) : at::linear(hidden, weight_);
}

void Embedding::pack(ops::PackedMatrix matrix) {
  if (matrix.rows() != vocab_size_ || matrix.cols() != hidden_size_)
    fail_argument("embedding: expected a matrix [{}, {}], got [{}, {}]", vocab_size_, hidden_size_,
                  matrix.rows(), matrix.cols());
  packed_ = std::move(matrix);
  if (parameters_.contains("weight")) parameters_.erase("weight");
  weight_ = at::Tensor();
}

}  // namespace coppice::nn
