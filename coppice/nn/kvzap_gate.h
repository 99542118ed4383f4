// The gate of KVzap: the log of how much a repetition of the text would look at an entry.
//
//   score[h] = w[h] . u + b[h]      u = GELU(W1 x + c1), or x itself without a hidden layer
//
// Trained on ln of KVzip+ (docs/maths.md 25). Source: arXiv:2601.07891.
#pragma once

#include <cstdint>
#include <memory>

#include "coppice/nn/gate.h"

namespace coppice::nn {

struct KvzapGateOptions {
  int64_t hidden_size = 0;
  int64_t width = 0;  // of the hidden layer; 0: there is none
  int64_t num_kv_heads = 0;
};

// Submodules linear1 and, with a hidden layer, linear2; both with bias.
class KvzapGate final : public Gate {
 public:
  // Throws kInvalidArgument on sizes out of range.
  explicit KvzapGate(const KvzapGateOptions& options);

  Linear& first_layer() override { return hidden_ ? *hidden_ : *head_; }
  at::Tensor after_first_layer(at::Tensor u) override;
  void pack() override;
  int64_t num_kv_heads() const override { return head_->out(); }

 private:
  std::shared_ptr<Linear> hidden_;  // null: none
  std::shared_ptr<Linear> head_;
};

}  // namespace coppice::nn
