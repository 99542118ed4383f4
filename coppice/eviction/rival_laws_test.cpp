// What the rival policies keep between passes: their rules restated in plain loops over doubles,
// with no code in common, and the laws of failed passes, forks and batches.
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/eviction/rival_testing.h"

namespace coppice {
namespace {

using at::Tensor;
using testing::Positions;
using testing::Rig;
using testing::with;

constexpr int64_t kLayers = 2, kHeads = 2, kGroup = 2, kWidth = 4;
constexpr int64_t kPasses[] = {20, 1, 1, 7, 1, 1, 70, 1, 1, 1, 1, 3, 1, 1, 30, 1, 1, 1};
constexpr int64_t kLength = 143, kBudget = 13, kWindow = 3, kKernel = 3;

struct Text {
  std::vector<Tensor> keys, queries;  // per layer: [kLength, Hkv, D], [kLength, Hq, D]

  explicit Text(int64_t salt = 0) {
    Rng rng(static_cast<uint64_t>(salt) + 40);
    const auto random = [&](int64_t heads) {
      Tensor all = at::randn({kLength, heads, kWidth});
      float* data = all.mutable_data_ptr<float>();
      for (int64_t i = 0; i < all.numel(); ++i)
        data[i] = static_cast<float>(rng.below(20001)) / 8000.0f - 1.25f;
      return all;
    };
    for (int64_t l = 0; l < kLayers; ++l) {
      keys.push_back(random(kHeads));
      queries.push_back(random(kHeads * kGroup));
    }
  }
  static std::vector<Tensor> part(const std::vector<Tensor>& all, int64_t first, int64_t count) {
    std::vector<Tensor> parts;
    for (const Tensor& one : all) parts.push_back(one.narrow(0, first, count));
    return parts;
  }
};

// Rows of positions, and the rules.
struct Reference {
  std::string policy;
  const Text& text;
  std::map<std::pair<int64_t, int64_t>, Positions> rows = {};
  std::map<std::tuple<int64_t, int64_t, int32_t>, double> sums = {};  // h2o's
  int64_t seen = 0;

  std::vector<double> attention(int64_t layer, int64_t query_head, int64_t query,
                                const Positions& row) const {
    const auto q = text.queries[static_cast<std::size_t>(layer)].accessor<float, 3>();
    const auto k = text.keys[static_cast<std::size_t>(layer)].accessor<float, 3>();
    std::vector<double> weights;
    double total = 0.0;
    for (const int32_t j : row) {
      double dot = 0.0;
      for (int64_t d = 0; d < kWidth; ++d)
        dot += double{q[query][query_head][d]} * double{k[j][query_head / kGroup][d]};
      weights.push_back(j <= query ? std::exp(dot) : 0.0);
      total += weights.back();
    }
    for (double& weight : weights) weight = total > 0.0 ? weight / total : 0.0;
    return weights;
  }

  // Mean over heads first .. first + count - 1 and queries from `from` on.
  std::vector<double> mean_attention(int64_t layer, int64_t first, int64_t count, int64_t from,
                                     const Positions& row) const {
    std::vector<double> mean(row.size(), 0.0);
    for (int64_t h = first; h < first + count; ++h)
      for (int64_t query = from; query < seen; ++query) {
        const std::vector<double> p = attention(layer, h, query, row);
        for (std::size_t i = 0; i < row.size(); ++i)
          mean[i] += p[i] / static_cast<double>(count * (seen - from));
      }
    return mean;
  }

  std::vector<double> scores(int64_t layer, int64_t head, const Positions& row) const {
    if (policy == "tova") return mean_attention(layer, 0, kHeads * kGroup, seen - 1, row);
    if (policy == "h2o") {
      std::vector<double> all;
      for (const int32_t j : row) all.push_back(sums.at({layer, head, j}));
      return all;
    }
    const std::vector<double> mean =
        mean_attention(layer, head * kGroup, kGroup, seen - kWindow, row);
    std::vector<double> pooled = mean;
    const auto before = static_cast<int64_t>(
        std::count_if(row.begin(), row.end(), [&](int32_t j) { return j < seen - kWindow; }));
    for (int64_t i = 0; i < before; ++i)
      for (int64_t o = std::max<int64_t>(0, i - kKernel / 2);
           o <= std::min(before - 1, i + kKernel / 2); ++o)
        pooled[static_cast<std::size_t>(i)] =
            std::max(pooled[static_cast<std::size_t>(i)], mean[static_cast<std::size_t>(o)]);
    return pooled;
  }

  void pass(int64_t count) {
    const int64_t recent = policy == "h2o" ? kBudget / 2 : policy == "snapkv" ? kWindow : 0;
    seen += count;
    for (int64_t layer = 0; layer < kLayers; ++layer)
      for (int64_t head = 0; head < kHeads; ++head) {
        Positions& row = rows[{layer, head}];
        for (int64_t j = seen - count; j < seen; ++j) row.push_back(static_cast<int32_t>(j));
        for (int64_t query = seen - count; query < seen; ++query)
          for (int64_t g = 0; g < kGroup; ++g) {
            const std::vector<double> p = attention(layer, head * kGroup + g, query, row);
            for (std::size_t i = 0; i < row.size(); ++i)
              sums[{layer, head, row[i]}] += p[i] / kGroup;
          }
      }
    for (auto& [place, row] : rows) {
      if (static_cast<int64_t>(row.size()) <= kBudget) continue;
      const std::vector<double> worth = scores(place.first, place.second, row);
      std::vector<std::tuple<bool, double, int32_t>> order;
      for (std::size_t i = 0; i < row.size(); ++i)
        order.push_back({row[i] >= seen - recent, worth[i], row[i]});
      std::sort(order.rbegin(), order.rend());
      order.resize(static_cast<std::size_t>(kBudget));
      row.clear();
      for (const auto& [safe, score, position] : order) row.push_back(position);
      std::sort(row.begin(), row.end());
    }
  }
};

EvictionConfig config_of(const std::string& policy, int64_t budget = kBudget) {
  if (policy != "snapkv") return with(policy, budget);
  return with(policy, budget,
              {{"window", std::to_string(kWindow)}, {"kernel", std::to_string(kKernel)}});
}

void expect_same(const Rig& a, const Rig& b, const std::string& what) {
  for (int64_t l = 0; l < kLayers; ++l)
    for (int64_t h = 0; h < kHeads; ++h)
      ASSERT_EQ(a.kept(l, h), b.kept(l, h)) << what << ", layer " << l << ", head " << h;
}

TEST(RivalLaws, what_is_kept_is_what_the_rule_says) {
  const Text text;
  for (const char* policy : {"h2o", "tova", "snapkv"}) {
    Rig rig(config_of(policy), kLayers, kHeads, kWidth);
    Reference reference{policy, text};
    int64_t first = 0;
    for (const int64_t count : kPasses) {
      rig.pass(Text::part(text.keys, first, count), Text::part(text.queries, first, count));
      reference.pass(count);
      first += count;
      for (const auto& [place, row] : reference.rows)
        ASSERT_EQ(rig.kept(place.first, place.second), row) << policy << " at " << first;
    }
    EXPECT_EQ(first, kLength);
  }
}

std::vector<std::string> attention_policies() {
  std::vector<std::string> names;
  for (const PolicyInfo& info : policies()) {
    const ScorerNeeds needs =
        EvictionPolicy({.policy = info.name},
                       {.num_layers = 1, .num_kv_heads = 1, .head_dim = 2, .max_blocks = 1})
            .needs();
    if ((needs.queries || needs.rescored) && !needs.rope) names.push_back(info.name);
  }
  return names;
}

TEST(RivalLaws, a_failed_pass_leaves_no_trace) {
  const Text text, other(1);
  for (const std::string& policy : attention_policies()) {
    Rig rig(with(policy, kBudget), kLayers, kHeads, kWidth);
    Rig clean(with(policy, kBudget), kLayers, kHeads, kWidth);
    int64_t first = 0;
    for (const int64_t count : kPasses) {
      rig.append(Text::part(other.keys, 0, 5), Text::part(other.queries, 0, 5));
      rig.cache.rollback(rig.id);
      for (Rig* each : {&rig, &clean})
        each->pass(Text::part(text.keys, first, count), Text::part(text.queries, first, count));
      first += count;
      expect_same(rig, clean, policy);
    }
  }
}

TEST(RivalLaws, K16_a_fork_goes_its_own_way) {
  const Text text, other(1);
  for (const std::string& policy : attention_policies()) {
    Rig rig(with(policy, kBudget), kLayers, kHeads, kWidth);
    Rig clean(with(policy, kBudget), kLayers, kHeads, kWidth);
    for (Rig* each : {&rig, &clean})
      each->pass(Text::part(text.keys, 0, 40), Text::part(text.queries, 0, 40));
    const SequenceId original = rig.id;
    rig.id = rig.cache.fork(original);
    rig.pass(Text::part(other.keys, 0, 30), Text::part(other.queries, 0, 30));
    rig.id = original;
    for (Rig* each : {&rig, &clean})
      for (int64_t first = 40; first < 60; ++first)
        each->pass(Text::part(text.keys, first, 1), Text::part(text.queries, first, 1));
    expect_same(rig, clean, policy);
  }
}

// Sums never shrink, so without its recent half H2O would keep the prompt for ever.
TEST(RivalLaws, K04_h2o_keeps_what_was_generated) {
  constexpr int64_t kPrompt = 64, kGenerated = 32;
  const Text text;
  Rig rig(with("h2o", 16), kLayers, kHeads, kWidth);
  rig.pass(Text::part(text.keys, 0, kPrompt), Text::part(text.queries, 0, kPrompt));
  for (int64_t t = kPrompt; t < kPrompt + kGenerated; ++t)
    rig.pass(Text::part(text.keys, t, 1), Text::part(text.queries, t, 1));
  for (int64_t l = 0; l < kLayers; ++l)
    for (int64_t h = 0; h < kHeads; ++h) {
      const Positions kept = rig.kept(l, h);
      ASSERT_EQ(kept.size(), 16u);
      for (std::size_t i = 8; i < 16; ++i)
        EXPECT_EQ(kept[i], kPrompt + kGenerated - 16 + static_cast<int32_t>(i));
      EXPECT_LT(kept[0], kPrompt);  // and heavy hitters of the prompt
    }
}

TEST(RivalLaws, K07_windows_above_half_the_budget_are_half_of_it) {
  EXPECT_EQ(Rig(with("snapkv", 12), 1, 1, 2).policy.config().recent, 6);
  EXPECT_EQ(Rig(with("snapkv", 100), 1, 1, 2).policy.config().recent, 32);
  EXPECT_EQ(Rig(with("snapkv", 1), 1, 1, 2).policy.config().recent, 0);
  EXPECT_EQ(Rig(with("h2o", 13), 1, 1, 2).policy.config().recent, 6);
  EXPECT_EQ(Rig(with("rkv", 128), 1, 1, 2).policy.config().recent, 8);
}

TEST(RivalLaws, options_are_known_by_name_or_refused) {
  const auto message = [](const EvictionConfig& config) -> std::string {
    try {
      Rig rig(config, 1, 1, 2);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_NE(message(with("snapkv", 9, {{"windw", "3"}})).find("kernel, pool, window"),
            std::string::npos);
  EXPECT_NE(message(with("tova", 9, {{"window", "3"}})).find("it knows none"), std::string::npos);
  EXPECT_NE(message(with("snapkv", 9, {{"window", "3x"}})).find("3x"), std::string::npos);
  EXPECT_NE(message(with("snapkv", 9, {{"kernel", "4"}})).find("odd"), std::string::npos);
  EXPECT_NE(message(with("snapkv", 9, {{"pool", "min"}})).find("max, avg"), std::string::npos);
  EXPECT_NE(message(with("adakv", 9, {{"alpha", "nan"}})).find("alpha"), std::string::npos);
  EXPECT_EQ(message(with("snapkv", 9, {{"kernel", "5"}})), "");
  EXPECT_EQ(Rig(with("snapkv", 9, {{"kernel", "5"}}), 1, 1, 2).policy.config().options,
            (OptionMap{{"kernel", "5"}, {"pool", "max"}, {"window", "32"}}));
  EvictionConfig global = with("tova", 9);
  global.scope = Scope::kGlobal;
  EXPECT_NE(message(global).find("scope"), std::string::npos);
}

}  // namespace
}  // namespace coppice
