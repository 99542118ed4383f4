#include "coppice/attention/paged_backend.h"

#include <ATen/ops/empty_like.h>

#include "coppice/core/error.h"
#include "coppice/ops/paged_attention_reference.h"

namespace coppice {
namespace {

static_assert(ops::kSlots == kBlockEntries);

void check_input(const AttentionInput& input, const Batch& batch, const CacheConfig& config) {
  const int64_t tokens = batch.num_tokens();
  const auto check = [&](const at::Tensor& t, const char* name, int64_t heads) {
    if (t.dim() != 3 || t.size(0) != tokens || (heads > 0 && t.size(1) != heads) ||
        t.size(2) != config.head_dim)
      fail_argument("paged attention: expected {} [{}, {}, {}], got {} dims with {} values", name,
                    tokens, heads > 0 ? heads : -1, config.head_dim, t.dim(), t.numel());
  };
  check(input.q, "q", 0);
  check(input.k, "k", config.num_kv_heads);
  check(input.v, "v", config.num_kv_heads);
  if (input.q.size(1) == 0 || input.q.size(1) % config.num_kv_heads != 0)
    fail_argument("paged attention: {} query heads do not divide among {} KV heads",
                  input.q.size(1), config.num_kv_heads);
  if (input.layer < 0 || input.layer >= config.num_layers)
    fail_argument("paged attention: expected a layer below {}, got {}", config.num_layers,
                  input.layer);
  if (input.window < 0)
    fail_argument("paged attention: expected a window of 0 or more, got {}", input.window);
}

at::Tensor part_of(const at::Tensor& t, int64_t first, int64_t count) {
  if (!t.defined() || count == t.size(0)) return t;
  return t.narrow(0, first, count);
}

bool has_pool_type(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

ops::PoolType pool_type(at::ScalarType dtype) {
  if (dtype == at::kHalf) return ops::PoolType::kF16;
  return dtype == at::kBFloat16 ? ops::PoolType::kBF16 : ops::PoolType::kF32;
}

}  // namespace

PagedBackend::PagedBackend(KvCache& cache, Path path) : cache_(cache), path_(path) {}

at::Tensor PagedBackend::forward(const AttentionInput& input, const Batch& batch) {
  check_input(input, batch, cache_.config());
  append(input, batch);
  plan_rows(input.layer, batch);
  const bool fast = path_ == Path::kFastest && input.q.device().is_cpu() &&
                    has_pool_type(input.q.scalar_type()) && cache_.keys().device().is_cpu() &&
                    has_pool_type(cache_.keys().scalar_type());
  at::Tensor out = fast ? attend_fast(input) : attend_reference(input);
  if (observer_) show(input, batch);
  return out;
}

void PagedBackend::show(const AttentionInput& input, const Batch& batch) const {
  for (std::size_t b = 0; b < batch.sequence_ids.size(); ++b) {
    const int64_t first = batch.cu_seqlens[b];
    observer_(
        {input.layer, b, part_of(input.q, first, batch.cu_seqlens[b + 1] - first), input.scale});
  }
}

void PagedBackend::append(const AttentionInput& input, const Batch& batch) {
  for (std::size_t b = 0; b < batch.sequence_ids.size(); ++b) {
    const int64_t first = batch.cu_seqlens[b];
    const int64_t count = batch.cu_seqlens[b + 1] - first;
    cache_.append(input.layer, batch.sequence_ids[b], part_of(input.k, first, count),
                  part_of(input.v, first, count), part_of(input.log_beta, first, count),
                  part_of(batch.modality, first, count));
  }
}

void PagedBackend::plan_rows(int64_t layer, const Batch& batch) {
  rows_.clear();
  for (std::size_t b = 0; b < batch.sequence_ids.size(); ++b) {
    const int64_t first = batch.cu_seqlens[b];
    const int64_t count = batch.cu_seqlens[b + 1] - first;
    for (int64_t head = 0; head < cache_.config().num_kv_heads; ++head) {
      const BlockTable& table = cache_.row(batch.sequence_ids[b], layer, head);
      rows_.push_back({table.blocks.data(), table.length, first, count, head});
    }
  }
}

at::Tensor PagedBackend::attend_fast(const AttentionInput& input) {
  const at::Tensor q = input.q.to(at::kFloat).contiguous();
  at::Tensor out = at::empty_like(q);
  const ops::PagedPool pool = {cache_.keys().const_data_ptr(), cache_.values().const_data_ptr(),
                               cache_.positions().const_data_ptr<int32_t>(),
                               pool_type(cache_.keys().scalar_type()), cache_.config().head_dim};
  const ops::PagedQueries queries = {q.const_data_ptr<float>(),
                                     out.mutable_data_ptr<float>(),
                                     q.size(1),
                                     q.size(1) / cache_.config().num_kv_heads,
                                     input.scale,
                                     input.window};
  ops::paged_attention(pool, rows_, queries, workspace_);
  return out.to(input.q.scalar_type());
}

at::Tensor PagedBackend::attend_reference(const AttentionInput& input) {
  const ops::PagedTensors pool = {cache_.keys(), cache_.values(), cache_.positions()};
  return ops::paged_attention_reference(pool, rows_, input.q,
                                        input.q.size(1) / cache_.config().num_kv_heads, input.scale,
                                        input.window);
}

}  // namespace coppice
