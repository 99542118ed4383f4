#include "coppice/eviction/policy.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "coppice/cache/cache_testing.h"
#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/core/rng.h"
#include "coppice/eviction/rival_testing.h"

namespace coppice {
namespace {

using testing::append_all;
using testing::Filler;
using testing::golden_case;
using testing::sorted_positions;
using Positions = std::vector<int32_t>;

CacheConfig sizes(int64_t layers = 1, int64_t heads = 1, int64_t width = 4) {
  return {.num_layers = layers, .num_kv_heads = heads, .head_dim = width, .max_blocks = 400};
}

Filler gated(float log_beta) {
  return {.salt = 0,
          .gate = [log_beta](int64_t, int64_t, int64_t) { return log_beta; },
          .key = testing::key_at};
}

int64_t pass(KvCache& cache, EvictionPolicy& policy, SequenceId id, int64_t tokens,
             const Filler& filler) {
  EXPECT_TRUE(cache.reserve(id, tokens));
  append_all(cache, id, filler);
  policy.note_appended(cache, id);
  cache.commit(id);
  const int64_t dropped = policy.evict(cache, id);
  testing::expect_clean(cache);
  return dropped;
}

void expect_error(const EvictionConfig& config, ErrorCode code, const std::string& part) {
  try {
    EvictionPolicy policy(config, sizes());
    ADD_FAILURE() << "no error that says " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(EvictionPolicy, K07_K08_what_cannot_hold_is_refused) {
  const auto bad = ErrorCode::kInvalidArgument;
  expect_error({.policy = "lru"}, ErrorCode::kNotFound, "dbtrimkv");
  expect_error({.budget_entries = 0}, bad, "at least 1");
  expect_error({.budget_entries = -5}, bad, "at least 1");
  expect_error({.budget_entries = 3}, bad, "4 sinks");
  expect_error({.policy = "streaming", .budget_entries = 3}, bad, "4 sinks");
  expect_error({.budget_entries = 19, .sinks = 4, .recent = 16}, bad, "16 recent");
  expect_error({.budget_entries = 9, .recent = std::numeric_limits<int64_t>::max()}, bad, "recent");
  expect_error({.budget_entries = 9, .sinks = -1}, bad, "sinks");
  expect_error({.budget_entries = 9, .floor = 10}, bad, "floor");
  expect_error({.budget_entries = 9, .lookahead = 0}, bad, "lookahead");
  expect_error({.budget_entries = EvictionConfig::kUnbounded - 1}, bad, "cannot be counted");
  expect_error({.budget_entries = 9, .buffer = 3}, bad, "buffer");
  expect_error({.policy = "knorm", .budget_entries = 9, .parity_reference = true}, bad,
               "retention gates");
  expect_error({.policy = "kvzap", .budget_entries = 9, .parity_reference = true}, bad,
               "retention gates");
  expect_error({.policy = "full", .budget_entries = 9}, bad, "takes no budget");
  EXPECT_NO_THROW(EvictionPolicy({.budget_entries = 20, .sinks = 4, .recent = 16}, sizes()));
  EXPECT_NO_THROW(EvictionPolicy({.budget_entries = 4}, sizes()));
  EXPECT_NO_THROW(EvictionPolicy({.policy = "knorm", .budget_entries = 1}, sizes()));
}

TEST(EvictionPolicy, the_configuration_comes_back_with_nothing_unset) {
  const EvictionPolicy policy({.budget_entries = 16}, sizes(3, 2));
  EXPECT_EQ(policy.config().sinks, 4);
  EXPECT_EQ(policy.config().recent, 0);
  EXPECT_EQ(policy.scope(), Scope::kGlobal);
  EXPECT_EQ(policy.budget_total(), 16 * 6);
  EXPECT_EQ(policy.bound_total(), 16 * 6);
  const EvictionPolicy parity({.budget_entries = 16, .parity_reference = true, .buffer = 4},
                              sizes(3, 2));
  EXPECT_EQ(parity.config().sinks, 0);
  EXPECT_EQ(parity.bound_total(), 20 * 6 - 1);
}

// Measured entries never exceed the budget around block edges (16).
TEST(EvictionPolicy, K08_K12_kept_entries_are_the_budget_and_so_are_the_blocks) {
  for (const PolicyInfo& info : policies()) {
    if (info.name == "full") continue;
    for (const int64_t budget : {1, 4, 5, 6, 15, 16, 17}) {
      EvictionConfig config{.policy = info.name, .budget_entries = budget};
      if (budget < info.default_sinks) config.sinks = 0;
      KvCache cache(sizes(2, 2));
      EvictionPolicy policy(config, cache.config());
      const SequenceId id = cache.add_sequence();
      for (int64_t seen = 1; seen <= 100; ++seen) {
        pass(cache, policy, id, 1, gated(-0.25f));
        ASSERT_EQ(cache.entries(id), std::min(seen, budget) * 4);
        ASSERT_LE(cache.blocks_in_use(), blocks_for_entries(budget * 4, 4));
        ASSERT_LE(cache.peak_blocks(), blocks_for_entries((budget + 1) * 4, 4));
      }
    }
  }
}

TEST(EvictionPolicy, K01_positions_go_on_after_eviction) {
  KvCache cache(sizes());
  EvictionPolicy policy({.budget_entries = 128}, cache.config());
  const SequenceId id = cache.add_sequence();
  EXPECT_EQ(pass(cache, policy, id, 300, gated(-0.5f)), 172);
  EXPECT_EQ(cache.tokens_seen(id), 300);
  pass(cache, policy, id, 1, gated(-0.5f));
  EXPECT_EQ(sorted_positions(cache, id, 0, 0).back(), 300);
}

// What stays of chance is a fair draw of all tokens, however they were read.
TEST(EvictionPolicy, random_keeps_early_tokens_as_often_as_late_ones) {
  KvCache cache(sizes(2, 3));
  int64_t early = 0, kept = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EvictionPolicy policy({.policy = "random", .budget_entries = 16, .seed = seed}, cache.config());
    const SequenceId one = cache.add_sequence(), two = cache.add_sequence();
    pass(cache, policy, one, 64, gated(-0.5f));
    for (int i = 0; i < 8; ++i) pass(cache, policy, two, 8, gated(-0.25f));
    for (int64_t row = 0; row < 6; ++row) {
      const Positions positions = sorted_positions(cache, one, row / 3, row % 3);
      EXPECT_EQ(positions, sorted_positions(cache, two, row / 3, row % 3));
      for (const int32_t position : positions) early += position < 32 ? 1 : 0;
      kept += static_cast<int64_t>(positions.size());
    }
    cache.remove_sequence(one), cache.remove_sequence(two);
  }
  EXPECT_EQ(kept, 20 * 6 * 16);
  EXPECT_NEAR(static_cast<double>(early) / static_cast<double>(kept), 0.5, 0.05);
}

TEST(EvictionPolicy, K14_together_equals_alone) {
  const auto gate = [](int64_t l, int64_t h, int64_t p) {
    return -static_cast<float>((l * 31 + h * 17 + p * 7) % 23) / 64.0f;
  };
  const Filler filler{.salt = 0, .gate = gate, .key = testing::key_at};
  KvCache cache(sizes(2, 3));
  EvictionPolicy policy({.budget_entries = 16}, cache.config());
  const int64_t lengths[] = {3, 50, 200};
  std::vector<SequenceId> together;
  for (int i = 0; i < 3; ++i) together.push_back(cache.add_sequence());
  for (int64_t t = 0; t < 200; ++t)
    for (std::size_t i = 0; i < 3; ++i)
      if (t < lengths[i]) pass(cache, policy, together[i], 1, filler);
  for (std::size_t i = 0; i < 3; ++i) {
    const SequenceId alone = cache.add_sequence();
    for (int64_t t = 0; t < lengths[i]; ++t) pass(cache, policy, alone, 1, filler);
    for (int64_t layer = 0; layer < 2; ++layer)
      for (int64_t head = 0; head < 3; ++head)
        EXPECT_EQ(sorted_positions(cache, together[i], layer, head),
                  sorted_positions(cache, alone, layer, head));
    cache.remove_sequence(alone);
  }
}

TEST(EvictionPolicy, K36_evicting_twice_changes_nothing) {
  for (const PolicyInfo& info : policies()) {
    if (info.name == "full") continue;
    KvCache cache(sizes(2, 2));
    EvictionPolicy policy({.policy = info.name, .budget_entries = 32}, cache.config());
    EvictionPolicy smaller({.policy = info.name, .budget_entries = 16}, cache.config());
    const SequenceId id = cache.add_sequence();
    EXPECT_EQ(pass(cache, policy, id, 90, gated(-0.1f)), (90 - 32) * 4);
    const Positions first = sorted_positions(cache, id, 1, 1);
    EXPECT_EQ(policy.evict(cache, id), 0);
    EXPECT_EQ(sorted_positions(cache, id, 1, 1), first);
    EXPECT_EQ(smaller.evict(cache, id), 16 * 4);
    for (const int32_t position : sorted_positions(cache, id, 1, 1))
      EXPECT_TRUE(std::binary_search(first.begin(), first.end(), position));
  }
}

TEST(EvictionPolicy, K22_a_hopeless_head_goes_empty_and_takes_the_next_token) {
  const Filler filler{.salt = 0,
                      .gate =
                          [](int64_t l, int64_t h, int64_t) {
                            return l == 1 && h == 0 ? -std::numeric_limits<float>::infinity()
                                                    : -1e-3f;
                          },
                      .key = testing::key_at};
  KvCache cache(sizes(2, 2));
  EvictionPolicy policy({.budget_entries = 10, .sinks = 0, .floor = 0}, cache.config());
  const SequenceId id = cache.add_sequence();
  pass(cache, policy, id, 60, filler);
  EXPECT_EQ(cache.row(id, 1, 0).length, 0);
  EXPECT_TRUE(cache.row(id, 1, 0).blocks.empty());
  EXPECT_EQ(cache.entries(id), 40);
  ASSERT_TRUE(cache.reserve(id, 1));
  append_all(cache, id, filler);
  EXPECT_EQ(cache.read_row(id, 1, 0).positions, Positions{60});
  cache.rollback(id);
  // A floor keeps it alive: the policy's own, half the budget at most, or one's own; a budget of 1
  // everywhere still holds.
  EvictionPolicy own({.budget_entries = 10, .sinks = 0}, cache.config());
  const SequenceId third = cache.add_sequence();
  pass(cache, own, third, 60, filler);
  EXPECT_EQ(sorted_positions(cache, third, 1, 0), (Positions{55, 56, 57, 58, 59}));
  cache.remove_sequence(third);
  EXPECT_EQ(EvictionPolicy({.budget_entries = 100}, cache.config()).config().floor, 8);
  EvictionPolicy with_floor({.budget_entries = 10, .sinks = 0, .floor = 3}, cache.config());
  const SequenceId second = cache.add_sequence();
  pass(cache, with_floor, second, 60, filler);
  EXPECT_EQ(sorted_positions(cache, second, 1, 0), (Positions{57, 58, 59}));
  EvictionPolicy one({.budget_entries = 1, .sinks = 0}, cache.config());
  EXPECT_EQ(one.evict(cache, second), 36);
  EXPECT_EQ(cache.entries(second), 4);
}

TEST(EvictionPolicy, K30_K31_gates_at_their_limits) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float lb : {0.0f, -0.0f, -1e-12f, -20.0f, -1e30f, -inf}) {
    for (const int64_t n : {1, 2, 9}) {
      KvCache cache(sizes());
      EvictionPolicy policy({.budget_entries = 12, .sinks = 2, .lookahead = n}, cache.config());
      const SequenceId id = cache.add_sequence();
      for (int i = 0; i < 5; ++i) pass(cache, policy, id, 10, gated(lb));
      // Equal gates and ties alike: two sinks and the newest.
      EXPECT_EQ(sorted_positions(cache, id, 0, 0),
                (Positions{0, 1, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49}))
          << lb;
      for (const float aux : cache.read_row(id, 0, 0).aux) EXPECT_FALSE(std::isnan(aux));
    }
  }
}

TEST(EvictionPolicy, broken_gates_and_keys_lose_first) {
  const float nan = std::nanf("");
  const Filler filler{
      .salt = 0,
      .gate = [nan](int64_t, int64_t, int64_t p) { return p % 2 == 0 ? nan : -0.5f; },
      .key = [nan](int64_t, int64_t, int64_t, int64_t p,
                   int64_t) { return p % 2 == 0 ? nan : 1.0f; }};
  for (const char* name : {"trimkv", "knorm"}) {
    KvCache cache(sizes());
    EvictionPolicy policy({.policy = name, .budget_entries = 5, .sinks = 0}, cache.config());
    const SequenceId id = cache.add_sequence();
    pass(cache, policy, id, 10, filler);
    EXPECT_EQ(sorted_positions(cache, id, 0, 0), (Positions{1, 3, 5, 7, 9}));
  }
}

TEST(EvictionPolicy, nothing_is_dropped_without_a_budget_or_below_it) {
  for (const PolicyInfo& info : policies()) {
    KvCache cache(sizes());
    EvictionPolicy unbounded({.policy = info.name}, cache.config());
    const SequenceId id = cache.add_sequence();
    EXPECT_EQ(pass(cache, unbounded, id, 100, gated(-1.0f)), 0);
    EXPECT_FALSE(unbounded.bounded());
    if (info.name == "full") continue;
    EvictionPolicy large({.policy = info.name, .budget_entries = 100}, cache.config());
    EXPECT_EQ(large.evict(cache, id), 0);
  }
}

TEST(EvictionPolicy, wrong_caches_and_open_passes_are_refused) {
  KvCache cache(sizes(2, 2));
  EvictionPolicy policy({.budget_entries = 8}, sizes(2, 3)),
      fits({.budget_entries = 8}, sizes(2, 2));
  const SequenceId id = cache.add_sequence();
  EXPECT_THROW(policy.evict(cache, id), Error);
  ASSERT_TRUE(cache.reserve(id, 3));
  EXPECT_THROW(fits.note_appended(cache, id), Error);
  append_all(cache, id, gated(-1.0f));
  EXPECT_THROW(fits.evict(cache, id), Error);
}

Positions after(const EvictionConfig& config, const std::vector<int64_t>& passes,
                const Filler& filler = gated(-0.5f), int64_t width = 4) {
  KvCache cache(sizes(1, 1, width));
  EvictionPolicy policy(config, cache.config());
  const SequenceId id = cache.add_sequence();
  for (const int64_t tokens : passes) pass(cache, policy, id, tokens, filler);
  return sorted_positions(cache, id, 0, 0);
}

TEST(GoldenCases, full_and_short) {
  const Json full = golden_case("full_basic");
  EXPECT_EQ(after({.policy = "full"}, {full["inputs"]["seq_len"]}),
            full["expected"]["kept"][0].get<Positions>());
  const Json brief = golden_case("short_sequence_keep_all");
  for (const PolicyInfo& info : policies()) {
    if (info.name == "full") continue;
    EXPECT_EQ(after({.policy = info.name, .budget_entries = brief["params"]["budget"]},
                    {brief["inputs"]["seq_len"]}),
              brief["expected"]["kept"][0].get<Positions>());
  }
}

TEST(GoldenCases, streaming) {
  for (const char* id : {"streamingllm_static", "streamingllm_kvpress"}) {
    const Json item = golden_case(id);
    const int64_t sinks = item["params"]["n_sink"];
    const int64_t budget = item["params"].contains("n_kept")
                               ? item["params"]["n_kept"].get<int64_t>()
                               : sinks + item["params"]["n_recent"].get<int64_t>();
    EXPECT_EQ(after({.policy = "streaming", .budget_entries = budget, .sinks = sinks},
                    {item["inputs"]["seq_len"]}),
              item["expected"]["kept"][0].get<Positions>());
  }
  // Making room before an append equals cutting after it.
  const Json room = golden_case("streamingllm_make_room");
  Positions kept = after({.policy = "streaming", .budget_entries = 5, .sinks = 2}, {5, 1});
  EXPECT_EQ(kept.back(), 5);
  kept.pop_back();
  EXPECT_EQ(kept, room["expected"]["kept_before_append"][0].get<Positions>());
  const Json trace = golden_case("streamingllm_trace");
  std::vector<int64_t> passes;
  for (const Json& expected : trace["expected"]["cache_after_each_append"]) {
    passes.push_back(1);
    EXPECT_EQ(after({.policy = "streaming", .budget_entries = 3, .sinks = 1}, passes),
              expected.get<Positions>());
  }
  // Ours refuses what the published prefill variant resolves by a tie among sinks.
  const Json below = golden_case("streamingllm_kvpress_budget_below_sinks");
  EXPECT_THROW(after({.policy = "streaming",
                      .budget_entries = below["params"]["n_kept"],
                      .sinks = below["params"]["n_sink"]},
                     {8}),
               Error);
}

TEST(GoldenCases, knorm) {
  const Json item = golden_case("knorm_basic"), tie = golden_case("knorm_tie");
  const Json keys = item["inputs"]["keys"][0];
  const Filler filler{
      .salt = 0, .gate = {}, .key = [&](int64_t, int64_t, int64_t, int64_t p, int64_t d) {
        return keys[static_cast<std::size_t>(p)][static_cast<std::size_t>(d)].get<float>();
      }};
  EXPECT_EQ(after({.policy = "knorm", .budget_entries = item["params"]["n_kept"]}, {6}, filler, 2),
            item["expected"]["kept"][0].get<Positions>());
  // Keys 1 and 2 tie. The case lets the lower index win; our one rule for all policies, the newer.
  EXPECT_EQ(tie["expected"]["kept"][0].get<Positions>(), (Positions{1, 4}));
  EXPECT_EQ(after({.policy = "knorm", .budget_entries = 2}, {6}, filler, 2), (Positions{2, 4}));
}

// What a policy remembers from step to step saves looks and changes no choice: a policy without a
// past, on a fork of the sequence, keeps the same entries.
TEST(EvictionPolicy, what_is_remembered_changes_no_choice) {
  Rng rng(11);
  for (const PolicyInfo& info : policies()) {
    if (info.name == "full") continue;
    for (const int64_t recent : {0, 9}) {
      EvictionConfig config{
          .policy = info.name, .budget_entries = 70, .sinks = 3, .recent = recent};
      if (recent > 0) config.floor = 20;
      KvCache cache({.num_layers = 3, .num_kv_heads = 2, .head_dim = 4, .max_blocks = 400});
      EvictionPolicy policy(config, cache.config());
      const SequenceId id = cache.add_sequence();
      const Filler filler{.salt = 3,
                          .gate =
                              [](int64_t l, int64_t h, int64_t p) {
                                const auto mix =
                                    static_cast<uint32_t>((l * 7 + h * 3 + p) * 2654435761u);
                                return -std::exp(-static_cast<float>(mix % 997) / 90.0f);
                              },
                          .key = testing::key_at};
      for (int step = 0; step < 250; ++step) {
        const int64_t tokens = step % 40 == 7 ? 1 + static_cast<int64_t>(rng.below(40)) : 1;
        ASSERT_TRUE(cache.reserve(id, tokens));
        append_all(cache, id, filler);
        policy.note_appended(cache, id);
        cache.commit(id);
        const SequenceId copy = cache.fork(id);
        EvictionPolicy fresh(config, cache.config());
        policy.evict(cache, id);
        fresh.evict(cache, copy);
        for (int64_t layer = 0; layer < 3; ++layer)
          for (int64_t head = 0; head < 2; ++head)
            ASSERT_EQ(sorted_positions(cache, id, layer, head),
                      sorted_positions(cache, copy, layer, head))
                << info.name << " step " << step;
        cache.remove_sequence(copy);
      }
    }
  }
}

}  // namespace
}  // namespace coppice
