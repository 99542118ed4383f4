// Sequences as plain tensors: out of the cache, and back into one.
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>

#include <limits>
#include <numeric>
#include <unordered_set>

#include "coppice/cache/kv_cache.h"
#include "coppice/core/error.h"

namespace coppice {
namespace {

at::Tensor as_index(const std::vector<int32_t>& blocks, const c10::Device& device) {
  const std::vector<int64_t> ids(blocks.begin(), blocks.end());
  return at::tensor(ids, at::kLong).to(device);
}

int64_t blocks_of_rows(const std::vector<int64_t>& lengths) {
  int64_t blocks = 0;
  for (const int64_t length : lengths) blocks += blocks_for_row(length);
  return blocks;
}

// Positions of every row differ and lie below `end`.
void check_positions(const at::Tensor& pool, const std::vector<int64_t>& lengths, int64_t end,
                     bool distinct) {
  const auto* data = pool.const_data_ptr<int32_t>();
  for (const int64_t length : lengths) {
    std::unordered_set<int32_t> seen;
    for (int64_t i = 0; i < length; ++i) {
      if (data[i] < 0 || data[i] >= end || (distinct && !seen.insert(data[i]).second))
        fail_argument("KV cache image: position {} of {} tokens stands in a row twice or is none",
                      data[i], end);
    }
    data += blocks_for_row(length) * kBlockEntries;
  }
}

}  // namespace

std::vector<at::Tensor> KvCache::image_like() const {
  PoolTensors pools = pools_;
  std::vector<at::Tensor> like;
  for (const at::Tensor* pool : pools.all()) like.push_back(pool->narrow(0, 0, 0).cpu());
  return like;
}

KvCache::SequenceImage KvCache::image(SequenceId id) const {
  const Sequence& sequence = find(id);
  if (sequence.tokens_in_pass > 0)
    fail_argument("KV cache: sequence {} has a pass in progress and gives no image", id);
  if (!sequence.notes.empty())
    fail_argument("KV cache: sequence {} has notes of its policy, which no image holds", id);
  SequenceImage image{sequence.tokens_seen, sequence.next_rotary, {}, {}};
  std::vector<int32_t> blocks;
  for (const BlockTable& row : sequence.rows) {
    image.lengths.push_back(row.length);
    blocks.insert(blocks.end(), row.blocks.begin(), row.blocks.end());
  }
  const at::Tensor index = as_index(blocks, config_.device);
  PoolTensors pools = pools_;
  for (const at::Tensor* pool : pools.all()) {
    at::Tensor copy = pool->index_select(0, index).cpu().contiguous();
    const bool keys = pool == &pools.keys;  // [blocks, D, 16]; the others [blocks, 16, ...]
    int64_t end = 0;
    for (const int64_t length : image.lengths) {
      end += blocks_for_row(length);
      const int64_t used = length % kBlockEntries;
      if (used > 0) copy[end - 1].narrow(keys ? 1 : 0, used, kBlockEntries - used).zero_();
    }
    image.pools.push_back(std::move(copy));
  }
  return image;
}

void KvCache::check_image(const SequenceImage& image) const {
  const std::vector<at::Tensor> like = image_like();
  const auto positions_end = int64_t{std::numeric_limits<int32_t>::max()};
  if (image.tokens_seen < 0 || image.tokens_seen > positions_end || image.next_rotary < 0 ||
      image.next_rotary > positions_end)
    fail_argument("KV cache image: {} tokens seen, next key at {}", image.tokens_seen,
                  image.next_rotary);
  if (static_cast<int64_t>(image.lengths.size()) != config_.num_rows() ||
      image.pools.size() != like.size())
    fail_argument("KV cache image: {} rows and {} pools, expected {} and {}", image.lengths.size(),
                  image.pools.size(), config_.num_rows(), like.size());
  for (const int64_t length : image.lengths) {
    if (length < 0 || length > image.tokens_seen)
      fail_argument("KV cache image: a row of {} entries after {} tokens", length,
                    image.tokens_seen);
  }
  const int64_t blocks = blocks_of_rows(image.lengths);
  for (std::size_t i = 0; i < like.size(); ++i) {
    const at::Tensor& pool = image.pools[i];
    if (!pool.defined() || pool.scalar_type() != like[i].scalar_type() ||
        pool.dim() != like[i].dim() || pool.size(0) != blocks ||
        pool.sizes().slice(1) != like[i].sizes().slice(1) || !pool.is_contiguous())
      fail_argument("KV cache image: pool {} has another shape or type than this cache", i);
    if (pool.is_floating_point() && !at::isfinite(pool).all().item<bool>())
      fail_argument("KV cache image: pool {} holds numbers that are not finite", i);
  }
  check_positions(image.pools[2], image.lengths, image.tokens_seen, true);
  if (blocks > 0 && image.pools[3].max().item<float>() > 0)
    fail_argument("KV cache image: a retention above 1");
  if (config_.rotary_positions)
    check_positions(image.pools.back(), image.lengths, image.next_rotary, false);
}

SequenceId KvCache::add_sequence(const SequenceImage& image) {
  check_image(image);
  const int64_t count = blocks_of_rows(image.lengths);
  std::vector<int32_t> blocks;
  if (!pool_.take(count, blocks))
    fail(ErrorCode::kCapacity, "KV cache: a stored sequence needs {} blocks, {} are free", count,
         pool_.free());
  const at::Tensor index = as_index(blocks, config_.device);
  std::size_t next_pool = 0;
  for (at::Tensor* pool : pools_.all())
    pool->index_copy_(0, index, image.pools[next_pool++].to(config_.device));
  const SequenceId id = add_sequence();
  Sequence& sequence = find(id);
  sequence.tokens_seen = image.tokens_seen;
  sequence.next_rotary = image.next_rotary;
  auto next = blocks.begin();
  for (std::size_t r = 0; r < sequence.rows.size(); ++r) {
    BlockTable& row = sequence.rows[r];
    row.length = image.lengths[r];
    row.blocks.assign(next, next + blocks_for_row(row.length));
    next += blocks_for_row(row.length);
    row.stamps.resize(row.blocks.size(), 0);
    row.stamp(0, row.length);
    sequence.entries += row.length;
  }
  return id;
}

}  // namespace coppice
