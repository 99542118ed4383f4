#include "coppice/train/objective.h"

#include <torch/torch.h>

#include <numeric>

namespace coppice {

MicroBatch make_micro_batch(const Row& row) {
  MicroBatch micro;
  micro.batch.token_ids = torch::tensor(row.tokens, torch::kLong);
  micro.targets = torch::tensor(row.targets, torch::kLong);
  micro.num_targets = row.num_targets();
  micro.labels = row.labels;
  micro.batch.cu_seqlens = row.cu_seqlens;
  std::vector<at::Tensor> positions;
  for (std::size_t b = 0; b + 1 < row.cu_seqlens.size(); ++b) {
    positions.push_back(torch::arange(row.cu_seqlens[b + 1] - row.cu_seqlens[b], torch::kLong));
    micro.batch.sequence_ids.push_back(static_cast<int64_t>(b));
  }
  micro.batch.positions = torch::cat(positions);
  return micro;
}

}  // namespace coppice
