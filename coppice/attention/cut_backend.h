// The student's attention under a budget: keys past the cut fade (ops/retention_attention.h,
// cut_attention). A pass must hold whole documents from their first token, as nothing is cached.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "coppice/nn/attention_backend.h"

namespace coppice {

class CutBackend final : public AttentionBackend {
 public:
  // pressure [N]: of each query, with its gradient. fades [N, 1], dtype of log beta: 1, or 0 for a
  // token that is always kept.
  CutBackend(at::Tensor pressure, at::Tensor fades, int64_t sharpness);

  // Throws kInvalidArgument for a layer without log beta or with a sliding window.
  at::Tensor forward(const AttentionInput& input, const Batch& batch) override;

 private:
  at::Tensor pressure_, fades_;
  int64_t sharpness_;
};

}  // namespace coppice
