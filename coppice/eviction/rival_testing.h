// Helpers for tests of policies that look at attention: a sequence fed with keys and queries as the
// engine feeds it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "coppice/cache/cache_testing.h"
#include "coppice/core/json.h"
#include "coppice/eviction/policy.h"

namespace coppice::testing {

using Positions = std::vector<int32_t>;

// A case of tests/golden/eviction_cases.json.
inline Json golden_case(const std::string& id) {
  std::ifstream file(COPPICE_SOURCE_DIR "/tests/golden/eviction_cases.json");
  std::stringstream text;
  text << file.rdbuf();
  const Json all = parse_json(text.str(), "eviction_cases.json");
  for (const Json& item : all["cases"])
    if (item["id"] == id) return item;
  ADD_FAILURE() << "no case " << id;
  return {};
}

inline at::Tensor matrix(const Json& rows) {
  std::vector<float> numbers;
  for (const Json& row : rows)
    for (const Json& number : row) numbers.push_back(number.get<float>());
  return at::tensor(numbers).view({static_cast<int64_t>(rows.size()), -1});
}

inline EvictionConfig with(const std::string& policy, int64_t budget,
                           const OptionMap& options = {}) {
  EvictionConfig config{.policy = policy, .budget_entries = budget};
  config.options = options;
  return config;
}

// A cache, a policy and one sequence. Keys [T, Hkv, D], queries [T, Hq, D], one per layer.
struct Rig {
  KvCache cache;
  EvictionPolicy policy;
  SequenceId id;

  Rig(const EvictionConfig& config, int64_t layers, int64_t heads, int64_t width)
      : cache({.num_layers = layers, .num_kv_heads = heads, .head_dim = width, .max_blocks = 2000}),
        policy(config, cache.config()),
        id(cache.add_sequence()) {}

  void append(const std::vector<at::Tensor>& keys, const std::vector<at::Tensor>& queries) {
    ASSERT_TRUE(cache.reserve(id, keys[0].size(0)));
    for (std::size_t layer = 0; layer < keys.size(); ++layer) {
      cache.append(static_cast<int64_t>(layer), id, keys[layer], keys[layer], {}, {});
      if (queries.empty()) continue;
      PassQueries pass;
      pass.layer = static_cast<int64_t>(layer);
      pass.q = queries[layer];
      policy.observe(cache, id, pass, 1.0);
    }
  }
  int64_t finish() {
    policy.note_appended(cache, id);
    cache.commit(id);
    return policy.evict(cache, id);
  }
  int64_t pass(const std::vector<at::Tensor>& keys, const std::vector<at::Tensor>& queries) {
    append(keys, queries);
    return finish();
  }
  Positions kept(int64_t layer, int64_t head) const {
    return sorted_positions(cache, id, layer, head);
  }
  std::map<int32_t, float> scores(int64_t layer, int64_t head) const {
    const auto row = cache.read_row(id, layer, head);
    std::map<int32_t, float> all;
    for (std::size_t i = 0; i < row.positions.size(); ++i) all[row.positions[i]] = row.aux[i];
    return all;
  }
};

}  // namespace coppice::testing
