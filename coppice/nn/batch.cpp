#include "coppice/nn/batch.h"

#include <set>

#include "coppice/core/error.h"

namespace coppice {
namespace {

void check_offsets(const Batch& batch) {
  const auto& offsets = batch.cu_seqlens;
  if (offsets.size() != batch.sequence_ids.size() + 1)
    fail_argument("batch: expected {} offsets for {} sequences, got {}",
                  batch.sequence_ids.size() + 1, batch.sequence_ids.size(), offsets.size());
  if (offsets.front() != 0) fail_argument("batch: offsets start at 0, got {}", offsets.front());
  for (std::size_t b = 0; b + 1 < offsets.size(); ++b)
    if (offsets[b + 1] <= offsets[b])
      fail_argument("batch: offsets must rise, got {} after {}", offsets[b + 1], offsets[b]);
  const std::set<int64_t> ids(batch.sequence_ids.begin(), batch.sequence_ids.end());
  if (ids.size() != batch.sequence_ids.size()) fail_argument("batch: a sequence id stands twice");
}

void check_input(const Batch& batch) {
  const int64_t tokens = batch.num_tokens();
  if (batch.token_ids.defined() == batch.embeddings.defined())
    fail_argument("batch: expected either token ids or embeddings, got {}",
                  batch.token_ids.defined() ? "both" : "none");
  if (batch.token_ids.defined()) {
    const at::Tensor& ids = batch.token_ids;
    if (ids.scalar_type() != at::kLong || ids.dim() != 1 || ids.size(0) != tokens)
      fail_argument("batch: expected token ids [{}] int64, got {} dims with {} values", tokens,
                    ids.dim(), ids.numel());
  } else if (batch.embeddings.dim() != 2 || batch.embeddings.size(0) != tokens) {
    fail_argument("batch: expected embeddings [{}, C], got {} dims with {} values", tokens,
                  batch.embeddings.dim(), batch.embeddings.numel());
  }
}

void check_positions(const Batch& batch) {
  const int64_t tokens = batch.num_tokens();
  const at::Tensor& positions = batch.positions;
  const bool fits = positions.defined() && positions.scalar_type() == at::kLong &&
                    (positions.dim() == 1 || (positions.dim() == 2 && positions.size(0) == 3)) &&
                    positions.size(-1) == tokens;
  if (!fits)
    fail_argument("batch: expected positions [{0}] or [3, {0}] int64, got {1} dims with {2} values",
                  tokens, positions.defined() ? positions.dim() : 0,
                  positions.defined() ? positions.numel() : 0);
  const at::Tensor& modality = batch.modality;
  if (modality.defined() &&
      (modality.scalar_type() != at::kByte || modality.dim() != 1 || modality.size(0) != tokens))
    fail_argument("batch: expected modality [{}] uint8, got {} dims with {} values", tokens,
                  modality.dim(), modality.numel());
}

}  // namespace

void validate(const Batch& batch) {
  check_offsets(batch);
  check_input(batch);
  check_positions(batch);
}

}  // namespace coppice
