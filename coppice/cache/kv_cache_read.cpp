// What a cache tells of what it holds.
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "coppice/cache/kv_cache.h"
#include "coppice/cache/validator.h"
#include "coppice/core/error.h"

namespace coppice {
namespace {

template <typename Element>
std::vector<Element> to_vector(const at::Tensor& tensor) {
  const at::Tensor local = tensor.cpu().contiguous();
  const auto* data = local.const_data_ptr<Element>();
  return {data, data + local.numel()};
}

}  // namespace

int64_t KvCache::entries_of(SequenceId id, uint8_t modality) const {
  const at::Tensor local = pools_.modalities.to(at::kCPU);  // no copy where it lies there
  const uint8_t* pool = local.const_data_ptr<uint8_t>();
  int64_t count = 0;
  for (const BlockTable& row : rows(id))
    for_each_run(row, 0, row.length, [&](int64_t slot, int64_t, int64_t n) {
      count += std::count(pool + slot, pool + slot + n, modality);
    });
  return count;
}

KvCache::RowContent KvCache::read_row(SequenceId id, int64_t layer, int64_t head) const {
  const BlockTable& row = this->row(id, layer, head);
  const auto needed = static_cast<std::size_t>(blocks_for_row(row.length));
  const std::vector<int64_t> ids(row.blocks.begin(),
                                 row.blocks.begin() + static_cast<std::ptrdiff_t>(needed));
  const at::Tensor blocks = at::tensor(ids, at::kLong).to(config_.device);
  const auto flat = [&](const at::Tensor& pool) {
    return pool.index_select(0, blocks).reshape({-1}).narrow(0, 0, row.length);
  };
  RowContent content;
  content.k = pools_.keys.index_select(0, blocks)
                  .transpose(1, 2)
                  .reshape({-1, config_.head_dim})
                  .narrow(0, 0, row.length);
  content.v = pools_.values.index_select(0, blocks)
                  .reshape({-1, config_.head_dim})
                  .narrow(0, 0, row.length);
  content.positions = to_vector<int32_t>(flat(pools_.positions));
  content.log_beta = to_vector<float>(flat(pools_.log_betas));
  content.aux = to_vector<float>(flat(pools_.aux));
  content.modality = to_vector<uint8_t>(flat(pools_.modalities));
  return content;
}

void KvCache::read_keys(SequenceId id, int64_t layer, int64_t head, int64_t first, int64_t count,
                        std::vector<float>& keys) const {
  const BlockTable& row = this->row(id, layer, head);
  if (first < 0 || count < 0 || first > row.length || count > row.length - first)
    fail_argument("KV cache: keys of {} places from {} in a row of {} entries", count, first,
                  row.length);
  keys.resize(static_cast<std::size_t>(count * config_.head_dim));
  coppice::read_keys(pools_, row, first, count, keys.data());
}

CacheSnapshot KvCache::snapshot() const {
  CacheSnapshot snapshot;
  snapshot.num_layers = config_.num_layers;
  snapshot.num_kv_heads = config_.num_kv_heads;
  snapshot.max_blocks = config_.max_blocks;
  snapshot.blocks_in_use = pool_.in_use();
  snapshot.peak_blocks = pool_.peak();
  snapshot.taken.resize(static_cast<std::size_t>(pool_.size()));
  for (std::size_t b = 0; b < snapshot.taken.size(); ++b)
    snapshot.taken[b] = pool_.is_taken(static_cast<int32_t>(b)) ? 1 : 0;
  const at::Tensor positions = pools_.positions.cpu();
  const auto* data = positions.const_data_ptr<int32_t>();
  for (const auto& [id, sequence] : sequences_) {
    CacheSnapshot::Sequence& copy = snapshot.sequences.emplace_back();
    copy.id = id;
    copy.tokens_seen = sequence.tokens_seen;
    copy.tokens_in_pass = sequence.tokens_in_pass;
    copy.entries = sequence.entries;
    for (std::size_t r = 0; r < sequence.rows.size(); ++r) {
      const BlockTable& row = sequence.rows[r];
      CacheSnapshot::Row& out = copy.rows.emplace_back();
      out.length = row.length;
      out.blocks = row.blocks;
      const std::size_t layer = r / static_cast<std::size_t>(config_.num_kv_heads);
      out.appended = sequence.tokens_in_pass > 0 && sequence.appended[layer] != 0;
      for (int64_t i = 0; i < row.length; ++i) out.positions.push_back(data[row.slot(i)]);
    }
  }
  return snapshot;
}

}  // namespace coppice
