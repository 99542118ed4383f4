// Policies whose gate gives a score that stays: what they keep, by hand and against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "coppice/cache/cache_testing.h"
#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/eviction/rival_testing.h"

namespace coppice {
namespace {

using testing::append_all;
using testing::Filler;
using testing::Positions;
using testing::sorted_positions;
using testing::with;

CacheConfig sizes(int64_t layers, int64_t heads) {
  return {.num_layers = layers, .num_kv_heads = heads, .head_dim = 4, .max_blocks = 400};
}

// Scores of one row or of [layer][head], by position.
using Table = std::vector<std::vector<std::vector<float>>>;

struct Fed {
  KvCache cache;
  EvictionPolicy policy;
  SequenceId id;

  Fed(const EvictionConfig& config, int64_t layers, int64_t heads)
      : cache(sizes(layers, heads)), policy(config, cache.config()), id(cache.add_sequence()) {}

  void pass(int64_t tokens, const Filler& filler) {
    ASSERT_TRUE(cache.reserve(id, tokens));
    append_all(cache, id, filler);
    policy.note_appended(cache, id);
    cache.commit(id);
    policy.evict(cache, id);
  }
  Positions kept(int64_t layer, int64_t head) const {
    return sorted_positions(cache, id, layer, head);
  }
};

Filler of_table(const Table& table) {
  return {.salt = 0,
          .gate =
              [table](int64_t l, int64_t h, int64_t p) {
                return table[static_cast<std::size_t>(l)][static_cast<std::size_t>(h)]
                            [static_cast<std::size_t>(p)];
              },
          .key = testing::key_at};
}

EvictionConfig bare(const std::string& policy, int64_t budget, const OptionMap& options = {}) {
  EvictionConfig config = with(policy, budget, options);
  config.sinks = config.recent = 0;
  return config;
}

// The published cut keeps all that tie with its threshold, one too many here; ours, what the budget
// says, the newer of equals.
TEST(StaticGates, equal_scores_do_not_pass_the_budget) {
  const Table scores = {{{.2F, 1, 1, .7F, 1, 1, .1F}}};
  for (const char* policy : {"fastkvzip", "kvzap"})
    for (const auto& [budget, kept] :
         std::map<int64_t, Positions>{{4, {1, 2, 4, 5}}, {3, {2, 4, 5}}, {5, {1, 2, 3, 4, 5}}}) {
      Fed fed(bare(policy, budget), 1, 1);
      fed.pass(7, of_table(scores));
      EXPECT_EQ(fed.kept(0, 0), kept) << policy << " " << budget;
    }
}

// Case kvzip_global of the baselines: one ranking of all layers and heads, no safeguard.
TEST(StaticGates, one_ranking_for_all_layers_and_heads) {
  const Table scores = {{{.9F, .2F, .3F, .1F}, {.5F, .05F, .6F, .15F}},
                        {{.35F, .25F, .4F, .45F}, {.02F, .03F, .04F, .7F}}};
  Fed fed(bare("kvzap", 2), 2, 2);
  fed.pass(4, of_table(scores));
  EXPECT_EQ(fed.kept(0, 0), (Positions{0, 2}));
  EXPECT_EQ(fed.kept(0, 1), (Positions{0, 2}));
  EXPECT_EQ(fed.kept(1, 0), (Positions{0, 2, 3}));
  EXPECT_EQ(fed.kept(1, 1), (Positions{3}));
}

TEST(StaticGates, K07_the_window_of_128_is_at_most_half_the_budget) {
  for (const char* policy : {"fastkvzip", "kvzap"}) {
    EXPECT_EQ(Fed(with(policy, 512), 1, 1).policy.config().recent, 128);
    EXPECT_EQ(Fed(with(policy, 64), 1, 1).policy.config().recent, 32);
    EXPECT_EQ(Fed(with(policy, 64), 1, 1).policy.config().sinks, 4);
    EXPECT_EQ(Fed(with(policy, 64), 1, 1).policy.config().floor, 0);
    EXPECT_EQ(Fed(with(policy, 6), 1, 1).policy.config().recent, 2);  // what the sinks leave
  }
}

TEST(StaticGates, tau_is_a_number_or_none) {
  EXPECT_TRUE(Fed(with("kvzap", 9), 1, 1).policy.fills_budget());
  EXPECT_TRUE(Fed(with("kvzap", 9, {{"tau", "none"}}), 1, 1).policy.fills_budget());
  const Fed bound(with("kvzap", 9, {{"tau", "-4.5"}}), 1, 1);
  EXPECT_FALSE(bound.policy.fills_budget());
  EXPECT_EQ(bound.policy.config().options, (OptionMap{{"tau", "-4.5"}}));
  for (const char* wrong : {"nan", "low", "", "inf"})
    EXPECT_THROW(Fed(with("kvzap", 9, {{"tau", wrong}}), 1, 1), Error) << wrong;
  EXPECT_THROW(Fed(with("fastkvzip", 9, {{"tau", "-4"}}), 1, 1), Error);
}

TEST(StaticGates, each_policy_takes_its_own_kind_of_gate) {
  for (const PolicyInfo& info : policies()) {
    const EvictionPolicy policy({.policy = info.name}, sizes(1, 1));
    EXPECT_EQ(policy.needs().gate, info.gate) << info.name;
    for (const std::string_view kind : {"", "retention", "kvzap", "fastkvzip"}) {
      if (info.gate.empty() || info.gate == kind)
        EXPECT_NO_THROW(policy.check_gate_kind(kind)) << info.name << " " << kind;
      else
        EXPECT_THROW(policy.check_gate_kind(kind), Error) << info.name << " " << kind;
    }
  }
  EXPECT_EQ(default_policy(""), "streaming");
  for (const char* kind : {"retention", "kvzap", "fastkvzip"})
    EXPECT_EQ(find_policy(default_policy(kind)).gate, kind);
}

// What stays under a threshold and a cap, restated: below the threshold all go that are not safe
// and not among their row's best `floor`; then the rest is cut to the budget.
struct Plain {
  int64_t layers, heads, budget, sinks, recent, floor;
  float tau;
  std::map<std::pair<int64_t, int64_t>, Positions> rows = {};
  int64_t seen = 0;

  void pass(int64_t tokens, const Filler& filler) {
    for (int64_t l = 0; l < layers; ++l)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t t = seen; t < seen + tokens; ++t)
          rows[{l, h}].push_back(static_cast<int32_t>(t));
    seen += tokens;
    using Entry = std::tuple<float, int32_t, int64_t>;  // rises with worth
    std::vector<Entry> free;
    int64_t held = 0;
    for (auto& [place, row] : rows) {
      std::vector<Entry> mine;
      Positions stay;
      for (const int32_t p : row) {
        const bool safe = p < sinks || p >= seen - recent;
        if (safe)
          stay.push_back(p);
        else
          mine.push_back({filler.gate(place.first, place.second, p), p,
                          -(place.first * heads + place.second)});
      }
      std::sort(mine.rbegin(), mine.rend());
      for (const Entry& entry : mine) {
        if (static_cast<int64_t>(stay.size()) < floor)
          stay.push_back(std::get<1>(entry));
        else if (!(std::get<0>(entry) < tau))
          free.push_back(entry);
      }
      row = stay;
      held += static_cast<int64_t>(stay.size());
    }
    std::sort(free.rbegin(), free.rend());
    free.resize(static_cast<std::size_t>(
        std::clamp<int64_t>(budget * layers * heads - held, 0, static_cast<int64_t>(free.size()))));
    for (const auto& [score, position, row] : free)
      rows[{-row / heads, -row % heads}].push_back(position);
    for (auto& [place, row] : rows) std::sort(row.begin(), row.end());
  }
};

TEST(StaticGates, below_the_threshold_entries_go_and_the_bound_holds) {
  Rng rng(7);
  int64_t below_budget = 0, at_budget = 0;
  for (const float tau : {-100.0F, -0.6F, -0.2F, 100.0F})
    for (const int64_t floor : {0, 5})
      for (const int64_t salt : {1, 2, 3}) {
        EvictionConfig config = with("kvzap", 20, {{"tau", fmt::format("{}", tau)}});
        config.sinks = 2, config.recent = 6, config.floor = floor;
        const Filler filler{.salt = salt,
                            .gate =
                                [salt](int64_t l, int64_t h, int64_t p) {
                                  const auto mix = static_cast<uint32_t>(
                                      (salt * 31 + l * 7 + h * 3 + p) * 2654435761u);
                                  return 0.3F - static_cast<float>(mix >> 8) / 16777216.0F;
                                },
                            .key = testing::key_at};
        Fed fed(config, 2, 3);
        Plain plain{2, 3, 20, 2, 6, floor, tau};
        for (int step = 0; step < 60; ++step) {
          const int64_t tokens = step % 9 == 0 ? 1 + static_cast<int64_t>(rng.below(30)) : 1;
          fed.pass(tokens, filler);
          plain.pass(tokens, filler);
          ASSERT_LE(fed.cache.entries(fed.id), fed.policy.budget_total());
          (fed.cache.entries(fed.id) < fed.policy.budget_total() ? below_budget : at_budget) += 1;
          for (const auto& [place, row] : plain.rows)
            ASSERT_EQ(fed.kept(place.first, place.second), row)
                << tau << " " << floor << " step " << step;
          ASSERT_EQ(fed.policy.evict(fed.cache, fed.id), 0);  // judged once
        }
      }
  EXPECT_GT(below_budget, 100);
  EXPECT_GT(at_budget, 100);
}

TEST(StaticGates, hopeless_scores_are_numbers_too) {
  const float low = -std::numeric_limits<float>::infinity();
  Fed fed(bare("fastkvzip", 3), 1, 1);
  fed.pass(6, of_table({{{low, -1.0F, low, -2.0F, low, low}}}));
  EXPECT_EQ(fed.kept(0, 0), (Positions{1, 3, 5}));
}

}  // namespace
}  // namespace coppice
