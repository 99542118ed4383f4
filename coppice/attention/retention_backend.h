// The student's attention in training: every key fades with age by its log beta
// (ops/retention_attention.h). A pass must hold whole documents from their first token, as nothing
// is cached.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "coppice/nn/attention_backend.h"

namespace coppice {

// Keeps each layer's log beta of the pass for the capacity term. Supports autograd and packed
// documents. One pass at a time.
class RetentionBackend final : public AttentionBackend {
 public:
  // Throws kInvalidArgument for a layer without log beta (a model without gates: DenseBackend) or
  // with a sliding window, whose old keys would be counted as kept although no query sees them.
  at::Tensor forward(const AttentionInput& input, const Batch& batch) override;

  // [N, Hkv] of each layer, by layer index, as the latest pass gave them, with their gradient. A
  // layer that ran twice (activation recomputation) leaves its latest.
  const std::vector<at::Tensor>& log_betas() const { return log_betas_; }

  // Lets go of them, and of the graph they hold.
  void clear() { log_betas_.clear(); }

 private:
  std::vector<at::Tensor> log_betas_;
};

}  // namespace coppice
