// The seam between a model and what it attends over. A model hands each layer's queries, keys,
// values and retention to the backend; training, evaluation and serving differ in the backend
// alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "coppice/nn/batch.h"

namespace coppice {

struct AttentionInput {
  int64_t layer = 0;
  at::Tensor q;         // [N, Hq, D], rotated
  at::Tensor k;         // [N, Hkv, D], rotated
  at::Tensor v;         // [N, Hkv, D]
  at::Tensor log_beta;  // [N, Hkv] float32, <= 0; undefined for a model without gates, the score of
                        // an entry where gates are of another kind than retention (nn/gate.h)
  double scale = 1.0;   // of the logits: 1 / sqrt(D)
  int64_t window = 0;   // newest keys a query sees; 0 is all
};

struct AttentionBackend {
  virtual ~AttentionBackend() = default;
  // Query head h reads KV head h / (Hq / Hkv). -> [N, Hq, D], dtype of q.
  virtual at::Tensor forward(const AttentionInput& input, const Batch& batch) = 0;
};

}  // namespace coppice
