// Plain causal attention within the pass itself: nothing is cached, so a pass must hold whole
// sequences from their first token. For evaluation, the teacher of training, and tests.
#pragma once

#include "coppice/nn/attention_backend.h"

namespace coppice {

// Stateless. Differentiable; float32 and float64. Ignores log_beta: with full attention nothing is
// evicted.
class DenseBackend final : public AttentionBackend {
 public:
  at::Tensor forward(const AttentionInput& input, const Batch& batch) override;
};

}  // namespace coppice
