#include "coppice/server/cache_view.h"

#include <algorithm>
#include <string>

#include "coppice/server/base64.h"

namespace coppice {
CacheView view_cache(const KvCache& cache, SequenceId sequence) {
  const std::span<const BlockTable> rows = cache.rows(sequence);
  CacheView view;
  view.seen = cache.tokens_seen(sequence);
  view.pool_bytes = cache.bytes_in_use();
  view.lengths.reserve(rows.size());
  for (const BlockTable& row : rows) view.lengths.push_back(row.length);
  const int64_t stride = view.stride();
  view.held.assign(static_cast<std::size_t>(view.seen * stride), 0);
  const at::Tensor pool = cache.positions().to(at::kCPU);
  const int32_t* const positions = pool.const_data_ptr<int32_t>();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    view.bytes += static_cast<int64_t>(rows[r].blocks.size()) * cache.config().block_bytes();
    uint8_t* const column = view.held.data() + r / 8;
    const auto bit = static_cast<uint8_t>(1U << (r % 8));
    for_each_run(rows[r], 0, rows[r].length, [&](int64_t slot, int64_t, int64_t count) {
      for (int64_t i = slot; i < slot + count; ++i) column[positions[i] * stride] |= bit;
    });
  }
  return view;
}

CacheTrace::CacheTrace(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), streams_(text_streams(tokenizer, false)), text_(streams_()) {}

Json CacheTrace::first(const CacheConfig& cache, const EvictionConfig& eviction,
                       int64_t prompt) const {
  const bool bounded = eviction.budget_entries != EvictionConfig::kUnbounded;
  return {{"layers", cache.num_layers},
          {"heads", cache.num_kv_heads},
          {"bytes_bound", cache.max_blocks * cache.block_bytes()},
          {"budget", bounded ? Json(eviction.budget_entries) : Json(nullptr)},
          {"policy", bounded ? eviction.policy : "full"},
          {"prompt", prompt}};
}

Json CacheTrace::tokens(std::span<const int32_t> ids) {
  Json texts = Json::array(), special = Json::array();
  const int64_t first = count_;
  for (const int32_t id : ids) {
    if (tokenizer_.is_special(id)) {
      const std::string rest = text_->finish();
      if (!rest.empty() && !texts.empty()) {
        texts.back() = texts.back().get<std::string>() + rest;
      }
      text_ = streams_();
      special.push_back(texts.size());
      texts.push_back(tokenizer_.token_text(id));
    } else {
      texts.push_back(text_->push(id));
    }
    ++count_;
  }
  return {{"first", first}, {"tokens", std::move(texts)}, {"special", std::move(special)}};
}

Json CacheTrace::view(const CacheView& view) {
  const auto stride = static_cast<std::size_t>(view.stride());
  held_.resize(view.held.size(), 0);
  Json at = Json::array();
  std::vector<uint8_t> changed;
  for (std::size_t begin = 0; begin < held_.size(); begin += stride) {
    const auto fresh = view.held.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto end = fresh + static_cast<std::ptrdiff_t>(stride);
    if (std::equal(fresh, end, held_.begin() + static_cast<std::ptrdiff_t>(begin))) continue;
    at.push_back(begin / stride);
    changed.insert(changed.end(), fresh, end);
  }
  held_ = view.held;
  int64_t kept = 0;
  for (const int64_t length : view.lengths) kept += length;
  const int64_t written = view.seen * static_cast<int64_t>(view.lengths.size());
  return {{"seen", view.seen},   {"rows", view.lengths},
          {"kept", kept},        {"evicted", written - kept},
          {"bytes", view.bytes}, {"pool_bytes", view.pool_bytes},
          {"at", std::move(at)}, {"held", encode_base64(changed)}};
}

}  // namespace coppice
