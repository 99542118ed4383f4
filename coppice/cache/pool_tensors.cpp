#include "coppice/cache/pool_tensors.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/parallel.h"

namespace coppice {
namespace {

// Blocks of a row lie far apart, so small pages would cost a table walk for every block. A smaller
// pool would waste too much of a large page.
constexpr int64_t kLeastForLargePages = int64_t{32} << 20;

constexpr int64_t kSmallPage = 4096;

using at::indexing::Slice;

at::Tensor allocate(at::IntArrayRef shape, at::ScalarType dtype, c10::Device device) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : shape) bytes *= size;
  if (!device.is_cpu()) {
    try {
      return at::empty(shape, options);
    } catch (const std::exception& error) {
      fail(ErrorCode::kCapacity, "KV cache: {} bytes on {} cannot be had: {}", bytes, device.str(),
           error.what());
    }
  }
  void* data = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    fail(ErrorCode::kCapacity, "KV cache: cannot reserve {} bytes: {}", bytes,
         std::strerror(errno));
  if (bytes >= kLeastForLargePages) ::madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  return at::from_blob(
      data, shape, [bytes](void* p) { ::munmap(p, static_cast<std::size_t>(bytes)); }, options);
}

// Has the system find and clear the memory now.
void make_resident(char* data, int64_t bytes) {
  constexpr int64_t kPiece = int64_t{16} << 20;  // whole large pages
  ops::parallel_for(0, bytes, kPiece, [&](int64_t begin, int64_t end) {
    if (::madvise(data + begin, static_cast<std::size_t>(end - begin), MADV_POPULATE_WRITE) == 0)
      return;
    if (errno != EINVAL)
      fail(ErrorCode::kCapacity, "KV cache: the system has no memory for its {} bytes: {}", bytes,
           std::strerror(errno));
    for (int64_t at = begin; at < end; at += kSmallPage) data[at] = 0;  // a system before 5.14
  });
}

// Calls visit(data, bytes of one block) for each pool.
template <typename Visit>
void for_each_pool(PoolTensors& pools, Visit&& visit) {
  for (at::Tensor* pool : pools.all()) {
    visit(static_cast<char*>(pool->mutable_data_ptr()),
          pool->stride(0) * static_cast<int64_t>(pool->element_size()));
  }
}

at::Tensor indices(const std::vector<int64_t>& values, const at::Tensor& like) {
  return at::tensor(values, at::kLong).to(like.device());
}

struct Columns {
  at::Tensor block, place;  // [M] int64
};

Columns split(const std::vector<int64_t>& slots, const at::Tensor& like) {
  std::vector<int64_t> block(slots.size()), place(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    block[i] = slots[i] / kBlockEntries;
    place[i] = slots[i] % kBlockEntries;
  }
  return {indices(block, like), indices(place, like)};
}

}  // namespace

PoolTensors allocate_pools(const CacheConfig& config) {
  const int64_t blocks = config.max_blocks, width = config.head_dim;
  PoolTensors pools;
  pools.keys = allocate({blocks, width, kBlockEntries}, config.dtype, config.device);
  pools.values = allocate({blocks, kBlockEntries, width}, config.dtype, config.device);
  pools.positions = allocate({blocks, kBlockEntries}, at::kInt, config.device);
  pools.log_betas = allocate({blocks, kBlockEntries}, at::kFloat, config.device);
  pools.aux = allocate({blocks, kBlockEntries}, at::kFloat, config.device);
  pools.modalities = allocate({blocks, kBlockEntries}, at::kByte, config.device);
  if (config.rotary_positions)
    pools.rotary = allocate({blocks, kBlockEntries}, at::kInt, config.device);
  if (config.resident && config.device.is_cpu())
    for_each_pool(pools,
                  [blocks](char* data, int64_t bytes) { make_resident(data, blocks * bytes); });
  return pools;
}

std::vector<at::Tensor*> PoolTensors::all() {
  std::vector<at::Tensor*> pools = {&keys, &values, &positions, &log_betas, &aux, &modalities};
  if (rotary.defined()) pools.push_back(&rotary);
  return pools;
}

void write_entries_reference(PoolTensors& pools, std::span<const BlockTable> rows,
                             const NewEntries& entries) {
  const int64_t tokens = entries.k.size(0), heads = entries.k.size(1), width = entries.k.size(2);
  const int64_t count = tokens * heads;
  std::vector<int64_t> slots, positions, rotary;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const BlockTable& row = rows[static_cast<std::size_t>(h)];
      slots.push_back(row.slot(row.length + t));
      positions.push_back(entries.first_position + t);
      rotary.push_back(entries.rotary.empty() ? entries.first_rotary + t
                                              : entries.rotary[static_cast<std::size_t>(t)]);
    }
  }
  const auto [block, place] = split(slots, pools.keys);
  const auto options = pools.keys.options();
  const at::Tensor k = entries.k.to(options).reshape({count, width});
  const at::Tensor v = entries.v.to(options).reshape({count, width});
  const at::Tensor log_beta = entries.log_beta.defined()
                                  ? entries.log_beta.to(pools.log_betas.options()).reshape({count})
                                  : at::zeros({count}, pools.log_betas.options());
  const at::Tensor modality = entries.modality.defined()
                                  ? entries.modality.to(pools.modalities.options())
                                        .unsqueeze(1)
                                        .expand({tokens, heads})
                                        .reshape({count})
                                  : at::zeros({count}, pools.modalities.options());
  pools.keys.index_put_({block, Slice(), place}, k);
  pools.values.index_put_({block, place}, v);
  const at::Tensor position = indices(positions, block).to(at::kInt);
  pools.positions.index_put_({block, place}, position);
  if (pools.rotary.defined())
    pools.rotary.index_put_({block, place}, indices(rotary, block).to(at::kInt));
  pools.log_betas.index_put_({block, place}, log_beta);
  pools.aux.index_put_({block, place}, at::zeros({count}, pools.aux.options()));
  pools.modalities.index_put_({block, place}, modality);
}

void move_entries_reference(PoolTensors& pools, std::span<const SlotMove> moves) {
  if (moves.empty()) return;
  std::vector<int64_t> sources, targets;
  for (const SlotMove& move : moves) {
    sources.push_back(move.from);
    targets.push_back(move.to);
  }
  const auto [from_block, from_place] = split(sources, pools.keys);
  const auto [to_block, to_place] = split(targets, pools.keys);
  pools.keys.index_put_({to_block, Slice(), to_place},
                        pools.keys.index({from_block, Slice(), from_place}));
  for (at::Tensor* pool : pools.all())
    if (pool != &pools.keys)
      pool->index_put_({to_block, to_place}, pool->index({from_block, from_place}));
}

void copy_blocks(PoolTensors& pools, std::span<const int32_t> from, std::span<const int32_t> to) {
  if (from.empty()) return;
  if (!pools.keys.device().is_cpu()) {
    const at::Tensor source = indices({from.begin(), from.end()}, pools.keys);
    const at::Tensor target = indices({to.begin(), to.end()}, pools.keys);
    for (at::Tensor* pool : pools.all())
      pool->index_copy_(0, target, pool->index_select(0, source));
    return;
  }
  for_each_pool(pools, [&](char* data, int64_t bytes) {
    for (std::size_t i = 0; i < from.size(); ++i)
      std::memcpy(data + to[i] * bytes, data + from[i] * bytes, static_cast<std::size_t>(bytes));
  });
}

void release_blocks(PoolTensors& pools, int64_t first, int64_t last) {
  if (!pools.keys.device().is_cpu()) return;
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  for_each_pool(pools, [&](char* data, int64_t bytes) {
    // The pools start on page borders.
    const int64_t begin = (first * bytes + page - 1) / page * page;
    const int64_t end = last * bytes / page * page;
    if (begin < end) ::madvise(data + begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
  });
}

}  // namespace coppice
