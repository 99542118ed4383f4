// Helpers for tests that fill a KvCache. Keys and values are small whole numbers made from layer,
// head, position and dimension, so every storage type holds them exactly and an entry that ended in
// the wrong place shows.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "coppice/cache/kv_cache.h"
#include "coppice/cache/validator.h"

namespace coppice::testing {

inline float key_at(int64_t salt, int64_t layer, int64_t head, int64_t position, int64_t d) {
  return static_cast<float>((salt * 31 + layer * 17 + head * 5 + position * 7 + d * 3) % 251) - 125;
}
inline float value_at(int64_t salt, int64_t layer, int64_t head, int64_t position, int64_t d) {
  return static_cast<float>((salt * 13 + layer * 11 + head * 29 + position * 3 + d * 19) % 241);
}

// log_beta of an entry; a function of layer, head and position.
using GateFn = std::function<float(int64_t, int64_t, int64_t)>;
using KeyFn = std::function<float(int64_t salt, int64_t, int64_t, int64_t, int64_t)>;

struct Filler {
  int64_t salt = 0;  // tells sequences apart
  GateFn gate;       // empty: log_beta undefined
  KeyFn key = key_at;
};

inline at::Tensor floats(at::IntArrayRef shape) { return at::empty(shape, at::kFloat); }

inline void append_layer(KvCache& cache, SequenceId sequence, int64_t layer, const Filler& filler) {
  const CacheConfig& config = cache.config();
  const int64_t tokens = cache.tokens_in_pass(sequence), first = cache.tokens_seen(sequence);
  const int64_t heads = config.num_kv_heads, width = config.head_dim;
  at::Tensor k = floats({tokens, heads, width}), v = floats({tokens, heads, width}), beta;
  if (filler.gate) beta = floats({tokens, heads});
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < width; ++d) {
        const int64_t at = (t * heads + h) * width + d;
        k.mutable_data_ptr<float>()[at] = filler.key(filler.salt, layer, h, first + t, d);
        v.mutable_data_ptr<float>()[at] = value_at(filler.salt, layer, h, first + t, d);
      }
      if (filler.gate)
        beta.mutable_data_ptr<float>()[t * heads + h] = filler.gate(layer, h, first + t);
    }
  }
  cache.append(layer, sequence, k, v, beta, at::Tensor());
}

inline void append_all(KvCache& cache, SequenceId sequence, const Filler& filler) {
  for (int64_t layer = 0; layer < cache.config().num_layers; ++layer)
    append_layer(cache, sequence, layer, filler);
}

// A whole pass without eviction.
inline void feed(KvCache& cache, SequenceId sequence, int64_t tokens, const Filler& filler) {
  ASSERT_TRUE(cache.reserve(sequence, tokens));
  append_all(cache, sequence, filler);
  cache.commit(sequence);
}

inline void expect_clean(const KvCache& cache) {
  for (const std::string& fault : validate(cache.snapshot())) ADD_FAILURE() << fault;
}

// Every entry of every row is what the filler made for its position. Holes are not seen.
inline void expect_content(const KvCache& cache, SequenceId sequence, const Filler& filler) {
  const CacheConfig& config = cache.config();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (int64_t h = 0; h < config.num_kv_heads; ++h) {
      const auto row = cache.read_row(sequence, layer, h);
      const at::Tensor k = row.k.to(at::kFloat).contiguous(), v = row.v.to(at::kFloat).contiguous();
      for (std::size_t i = 0; i < row.positions.size(); ++i) {
        const int64_t position = row.positions[i];
        for (int64_t d = 0; d < config.head_dim; ++d) {
          const int64_t at = static_cast<int64_t>(i) * config.head_dim + d;
          ASSERT_EQ(k.const_data_ptr<float>()[at], filler.key(filler.salt, layer, h, position, d))
              << "layer " << layer << " head " << h << " position " << position;
          ASSERT_EQ(v.const_data_ptr<float>()[at], value_at(filler.salt, layer, h, position, d));
        }
        ASSERT_EQ(row.log_beta[i], filler.gate ? filler.gate(layer, h, position) : 0.0f);
      }
    }
  }
}

// Fills every slot that no row owns with NaN and nonsense.
inline void poison_free_slots(KvCache& cache) {
  std::vector<uint8_t> owned(static_cast<std::size_t>(cache.config().max_blocks) * kBlockEntries);
  for (const SequenceId id : cache.sequences())
    for (const BlockTable& row : cache.rows(id))
      for (int64_t i = 0; i < row.length; ++i) owned[static_cast<std::size_t>(row.slot(i))] = 1;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const int64_t width = cache.config().head_dim;
  const auto poison_keys_values = [&](auto bits, int64_t slot) {
    using Bits = decltype(bits);
    auto* keys = static_cast<Bits*>(cache.keys().mutable_data_ptr());
    auto* values = static_cast<Bits*>(cache.values().mutable_data_ptr());
    for (int64_t d = 0; d < width; ++d) {
      keys[(slot / kBlockEntries * width + d) * kBlockEntries + slot % kBlockEntries] = bits;
      values[slot * width + d] = bits;
    }
  };
  for (std::size_t slot = 0; slot < owned.size(); ++slot) {
    if (owned[slot] != 0) continue;
    const auto s = static_cast<int64_t>(slot);
    if (cache.config().dtype == at::kFloat)
      poison_keys_values(nan, s);
    else
      poison_keys_values(uint16_t{0x7FFF}, s);  // a NaN in both 16-bit types
    cache.log_betas().mutable_data_ptr<float>()[s] = nan;
    cache.aux().mutable_data_ptr<float>()[s] = nan;
    cache.positions().mutable_data_ptr<int32_t>()[s] = -7;
  }
}

inline std::vector<int32_t> sorted_positions(const KvCache& cache, SequenceId sequence,
                                             int64_t layer, int64_t head) {
  std::vector<int32_t> positions = cache.read_row(sequence, layer, head).positions;
  std::sort(positions.begin(), positions.end());
  return positions;
}

}  // namespace coppice::testing
