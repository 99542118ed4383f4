// For tests of backends that train: a pass over two documents, and random input to it.
#pragma once

#include <torch/torch.h>

#include "coppice/nn/attention_backend.h"

namespace coppice::testing {

inline AttentionInput random_input(int64_t layer, int64_t tokens) {
  AttentionInput input;
  input.layer = layer;
  input.q = torch::randn({tokens, 4, 8}, torch::kDouble);
  input.k = torch::randn({tokens, 2, 8}, torch::kDouble);
  input.v = torch::randn({tokens, 2, 8}, torch::kDouble);
  input.log_beta = -torch::rand({tokens, 2}, torch::kDouble);
  input.scale = 0.4;
  return input;
}

inline Batch two_documents() {
  Batch batch;
  batch.cu_seqlens = {0, 5, 12};
  batch.sequence_ids = {0, 1};
  return batch;
}

}  // namespace coppice::testing
