// Token embeddings, which a model with tied weights also uses as its output head.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>

#include "coppice/ops/packed_matrix.h"

namespace coppice::nn {

// Parameter, named as in checkpoints: weight [V, C], absent once packed.
class Embedding final : public torch::nn::Module {
 public:
  Embedding(int64_t vocab_size, int64_t hidden_size);

  // ids [N] int64 -> [N, C]. Throws kInvalidArgument on an id outside the vocabulary.
  at::Tensor forward(const at::Tensor& ids);
  // hidden [M, C] -> logits [M, V].
  at::Tensor project(const at::Tensor& hidden);

  // Replaces the dense weight. Throws kInvalidArgument when the shape differs.
  void pack(ops::PackedMatrix matrix);
  bool is_packed() const { return packed_.has_value(); }

  int64_t vocab_size() const { return vocab_size_; }
  int64_t hidden_size() const { return hidden_size_; }

 private:
  int64_t vocab_size_, hidden_size_;
  at::Tensor weight_;
  std::optional<ops::PackedMatrix> packed_;
};

}  // namespace coppice::nn
