#include "coppice/attention/compact_positions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "coppice/core/error.h"

namespace coppice {
namespace {

constexpr int64_t kBlocksAtOnce = 4;

int64_t longest_row(const KvCache& cache, SequenceId sequence) {
  int64_t longest = 0;
  for (int64_t layer = 0; layer < cache.config().num_layers; ++layer)
    for (int64_t head = 0; head < cache.config().num_kv_heads; ++head)
      longest = std::max(longest, cache.row(sequence, layer, head).length);
  return longest;
}

// positions [L] -> [L] int64: how many of them are greater.
at::Tensor newer_entries(const at::Tensor& positions) {
  return positions.argsort(/*dim=*/0, /*descending=*/true).argsort();
}

// Angles are rounded to float32 as the model rounds them (ops/rope.h), so that a key turned on is
// the key rotated afresh. positions [S] -> [S, D/2] float64.
at::Tensor angles(const at::Tensor& positions, const at::Tensor& inv_freq) {
  return (positions.to(at::kFloat).unsqueeze(1) * inv_freq).to(at::kDouble);
}

// keys [blocks, D, 16], turned by the angles turn [blocks x 16, D/2].
at::Tensor turned(const at::Tensor& keys, const at::Tensor& turn) {
  const int64_t half = keys.size(1) / 2;
  const at::Tensor by = turn.view({keys.size(0), kBlockEntries, half}).transpose(1, 2);
  const at::Tensor low = keys.narrow(1, 0, half).to(at::kDouble);
  const at::Tensor high = keys.narrow(1, half, half).to(at::kDouble);
  const at::Tensor cos = by.cos();
  const at::Tensor sin = by.sin();
  return at::cat({low * cos - high * sin, high * cos + low * sin}, 1).to(keys.scalar_type());
}

void compact_row(KvCache& cache, const BlockTable& row, const at::Tensor& inv_freq, int64_t next) {
  const auto count = static_cast<int64_t>(row.blocks.size());
  const at::Tensor blocks =
      at::from_blob(const_cast<int32_t*>(row.blocks.data()), {count}, at::kInt)
          .to(cache.keys().device(), at::kLong);
  const at::Tensor positions = cache.positions().index_select(0, blocks).flatten();
  const at::Tensor old = cache.rotary_positions().index_select(0, blocks).flatten();
  // Slots behind the row's end keep what they hold.
  at::Tensor renumbered = old.clone();
  renumbered.narrow(0, 0, row.length)
      .copy_((next - 1 - newer_entries(positions.narrow(0, 0, row.length))).clamp_min(0));
  const at::Tensor inside = at::arange(count * kBlockEntries, blocks.options()) < row.length;
  const at::Tensor turn =
      at::where(inside.unsqueeze(1), angles(renumbered, inv_freq) - angles(old, inv_freq), 0.0);
  // A few blocks at a time: scratch of one small size, which the allocator reuses whatever the
  // row's length, so that a stream without end holds no more memory at its end than at its start.
  for (int64_t first = 0; first < count; first += kBlocksAtOnce) {
    const int64_t part = std::min(kBlocksAtOnce, count - first);
    const at::Tensor ids = blocks.narrow(0, first, part);
    const at::Tensor by = turn.narrow(0, first * kBlockEntries, part * kBlockEntries);
    cache.keys().index_copy_(0, ids, turned(cache.keys().index_select(0, ids), by));
  }
  cache.rotary_positions().index_copy_(0, blocks, renumbered.view({count, kBlockEntries}));
}

}  // namespace

bool compaction_due(const KvCache& cache, SequenceId sequence, int64_t new_tokens,
                    int64_t trained_positions) {
  return new_tokens > trained_positions - cache.next_rotary(sequence);
}

void compact_positions(KvCache& cache, SequenceId sequence, const at::Tensor& inv_freq,
                       int64_t trained_positions) {
  if (inv_freq.dim() != 1 || 2 * inv_freq.numel() != cache.config().head_dim)
    fail_argument("compact positions: expected {} frequencies, got {}", cache.config().head_dim / 2,
                  inv_freq.numel());
  if (trained_positions < 2)
    fail_argument("compact positions: expected a trained range of 2 or more, got {}",
                  trained_positions);
  COPPICE_CHECK(cache.tokens_in_pass(sequence) == 0, "compact positions: a pass is in progress");
  const int64_t next = std::min(longest_row(cache, sequence), trained_positions / 2);
  const at::Tensor frequencies = inv_freq.to(cache.keys().device(), at::kFloat);
  for (int64_t layer = 0; layer < cache.config().num_layers; ++layer)
    for (int64_t head = 0; head < cache.config().num_kv_heads; ++head) {
      const BlockTable& row = cache.row(sequence, layer, head);
      if (row.length > 0) compact_row(cache, row, frequencies, next);
    }
  cache.set_next_rotary(sequence, next);
}

}  // namespace coppice
