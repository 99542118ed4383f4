// The cache and its policies against sets of entries: the rules of policy.h restated the plain way
// (sort everything, walk the list) with no code in common.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "coppice/cache/cache_testing.h"
#include "coppice/core/rng.h"
#include "coppice/eviction/policy.h"
#include "coppice/ops/cpu_features.h"

namespace coppice {
namespace {

using testing::Filler;

constexpr int64_t kLayers = 3, kHeads = 2, kRows = kLayers * kHeads, kWidth = 4;

struct Entry {
  int64_t row;
  int64_t position;
  auto operator<=>(const Entry&) const = default;
};

struct SetModel {
  EvictionConfig config;
  PolicyInfo info;
  Filler filler;
  int64_t seen = 0;
  std::set<Entry> entries;

  int64_t sinks() const {
    return config.sinks.value_or(config.parity_reference ? 0 : info.default_sinks);
  }
  int64_t recent() const {
    if (config.recent) return *config.recent;
    if (info.gate != "kvzap" && info.gate != "fastkvzip") return 0;
    int64_t beside = 0;  // pinned tokens that are no sinks
    for (const PositionSpan& pin : config.pins)
      beside += std::max<int64_t>(0, pin.end - std::max<int64_t>(pin.begin, sinks()));
    return std::min(config.budget_entries / 2, config.budget_entries - sinks() - beside);
  }
  Scope scope() const { return config.scope.value_or(info.scope); }

  int64_t floor() const {
    if (config.floor) return *config.floor;
    if (config.parity_reference) return 0;
    return std::min(info.default_floor, config.budget_entries / 2);
  }

  float score(const Entry& entry) const {
    const int64_t layer = entry.row / kHeads, head = entry.row % kHeads;
    if (config.policy == "streaming") return static_cast<float>(entry.position);
    if (config.policy == "knorm") {
      std::vector<float> key;
      for (int64_t d = 0; d < kWidth; ++d)
        key.push_back(filler.key(filler.salt, layer, head, entry.position, d));
      return -make_knorm_scorer()->aux({.key = key});  // its own rounding: Knorm.aux_is_the_norm
    }
    if (config.policy == "random")
      return make_random_scorer(config.seed)
          ->aux({.layer = layer, .head = head, .position = entry.position});
    const float lb = filler.gate(layer, head, entry.position);
    if (info.gate == "kvzap" || info.gate == "fastkvzip") return lb;
    const int64_t n = config.lookahead;
    int64_t age = seen - entry.position;  // t + 1 - i
    if (config.parity_reference) age += n == 1 ? 1 : 2;
    double sum = 1.0;  // 1 + beta + ... + beta^(n-1)
    for (int64_t k = 1; k < n; ++k)
      sum += std::exp(static_cast<double>(lb) * static_cast<double>(k));
    return static_cast<float>(age) * lb + static_cast<float>(std::log(sum));
  }

  bool is_protected(const Entry& entry) const {
    for (const PositionSpan& pin : config.pins)
      if (entry.position >= pin.begin && entry.position < pin.end) return true;
    return entry.position < sinks() || entry.position >= seen - recent();
  }

  // Best first.
  std::vector<Entry> ranking(const std::set<Entry>& group) const {
    std::vector<std::tuple<bool, float, int64_t, int64_t>> keys;
    for (const Entry& e : group) keys.emplace_back(is_protected(e), score(e), e.position, -e.row);
    std::sort(keys.rbegin(), keys.rend());
    std::vector<Entry> order;
    for (const auto& [safe, score, position, row] : keys) order.push_back({-row, position});
    return order;
  }

  void evict() {
    if (config.budget_entries == EvictionConfig::kUnbounded) return;
    const int64_t rows_of_group = scope() == Scope::kHead    ? 1
                                  : scope() == Scope::kLayer ? kHeads
                                                             : kRows;
    for (int64_t first = 0; first < kRows; first += rows_of_group) {
      std::set<Entry> group;
      for (const Entry& e : entries)
        if (e.row >= first && e.row < first + rows_of_group) group.insert(e);
      const auto size = static_cast<int64_t>(group.size());
      const int64_t budget = config.budget_entries * rows_of_group;
      if (size <= budget || size < budget + config.buffer * rows_of_group) continue;
      const std::vector<Entry> order = ranking(group);
      std::set<Entry> kept;
      std::map<int64_t, int64_t> in_row;
      for (const Entry& e : order)
        if (is_protected(e)) kept.insert(e), ++in_row[e.row];
      for (const Entry& e : order)
        if (!kept.contains(e) && in_row[e.row] < floor()) kept.insert(e), ++in_row[e.row];
      for (const Entry& e : order)
        if (static_cast<int64_t>(kept.size()) < budget) kept.insert(e);
      for (const Entry& e : group)
        if (!kept.contains(e)) entries.erase(e);
    }
  }
};

CacheConfig sizes(int64_t blocks) {
  return {.num_layers = kLayers,
          .num_kv_heads = kHeads,
          .head_dim = kWidth,
          .dtype = at::kFloat,
          .max_blocks = blocks};
}

// Gates of every kind that has ever mattered: all different, all equal, and at both limits.
Filler random_filler(int64_t salt, int kind) {
  Filler filler{.salt = salt, .gate = {}, .key = testing::key_at};
  filler.gate = [salt, kind](int64_t layer, int64_t head, int64_t position) {
    uint64_t hash = static_cast<uint64_t>(salt * 1000003 + layer * 8191 + head * 131 + position);
    hash = (hash ^ (hash >> 15)) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
    switch (kind) {
      case 0:  // all different
        return -static_cast<float>(hash % 1000003) / 1000003.0f;
      case 1:  // constant: everything ties at equal age
        return -0.125f;
      case 2:  // beta 1 everywhere: all scores tie
        return 0.0f;
      case 3:  // three values, one of them beta 1
        return -static_cast<float>(hash % 3) / 4.0f;
      case 4:  // one head is hopeless
        return head == 1 ? -30.0f : -static_cast<float>(hash % 97) / 1024.0f;
      default:  // beta exactly 0 here and there
        return hash % 5 == 0 ? -std::numeric_limits<float>::infinity() : -0.5f;
    }
  };
  // Few different norms, so that knorm ties too.
  if (kind == 1 || kind == 3)
    filler.key = [](int64_t, int64_t layer, int64_t, int64_t position, int64_t) {
      return static_cast<float>(position % 3 + layer % 2);
    };
  return filler;
}

void expect_same(const CacheSnapshot::Sequence& sequence, const SetModel& model) {
  std::set<Entry> entries;
  for (std::size_t row = 0; row < sequence.rows.size(); ++row)
    for (const int32_t position : sequence.rows[row].positions)
      entries.insert({static_cast<int64_t>(row), position});
  ASSERT_EQ(entries.size(), static_cast<std::size_t>(sequence.entries));
  ASSERT_TRUE(entries == model.entries);
  ASSERT_EQ(sequence.tokens_seen, model.seen);
}

// One pass of one sequence, in the cache and in the model.
void step(KvCache& cache, EvictionPolicy& policy, SequenceId id, SetModel& model, int64_t tokens) {
  ASSERT_TRUE(cache.reserve(id, tokens));
  testing::append_all(cache, id, model.filler);
  policy.note_appended(cache, id);
  cache.commit(id);
  const int64_t before = cache.entries(id);
  const int64_t dropped = policy.evict(cache, id);
  ASSERT_EQ(before - dropped, cache.entries(id));
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t row = 0; row < kRows; ++row) model.entries.insert({row, model.seen + t});
  model.seen += tokens;
  model.evict();
  if (policy.bounded()) {
    ASSERT_LE(cache.entries(id), policy.bound_total());
    if (policy.config().buffer == 0) {
      ASSERT_EQ(cache.entries(id), std::min(model.seen * kRows, policy.budget_total()));
    }
  }
}

struct Setting {
  EvictionConfig config;
  int gate_kind;
  ops::CpuLevel level = ops::cpu_level();
};

// Each of these settings with pins that fit, with both looks over a row.
std::vector<Setting> pinned(const std::vector<Setting>& plain) {
  std::vector<Setting> all;
  for (const Setting& setting : plain) {
    EvictionConfig config = setting.config;
    if (setting.gate_kind % 2 == 1 || config.policy == "full") continue;
    const int64_t room =
        config.budget_entries - config.sinks.value_or(4) - config.recent.value_or(0);
    if (room >= 3)
      config.pins = {{5, 6}, {8, 10}};
    else if (room >= 1)
      config.pins = {{6, 7}};
    else
      config.pins = {{0, 1}};  // among the sinks
    for (const ops::CpuLevel level : {ops::CpuLevel::kPortable, ops::CpuLevel::kAvx512})
      if (level <= ops::detected_cpu_level()) all.push_back({config, setting.gate_kind, level});
  }
  return all;
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const PolicyInfo& info : policies()) {
    // Scores that follow from attention or from other entries have a model of their own in
    // rivals_test.cpp.
    const ScorerNeeds needs = EvictionPolicy({.policy = info.name}, sizes(1)).needs();
    if (needs.queries || needs.rescored) continue;
    for (int kind = 0; kind < 6; ++kind) {
      EvictionConfig config{.policy = info.name};
      if (info.name == "full") {
        all.push_back({config, kind});
        continue;
      }
      config.budget_entries = 9;
      all.push_back({config, kind});
      for (const Scope scope : {Scope::kHead, Scope::kLayer, Scope::kGlobal}) {
        config.scope = scope;
        config.sinks = 2, config.recent = 3, config.floor = 0, config.lookahead = 1;
        all.push_back({config, kind});
        config.sinks = 0, config.recent = 0, config.floor = 4, config.lookahead = 5;
        all.push_back({config, kind});
        config.sinks = 3, config.recent = 1, config.floor = 9;
        all.push_back({config, kind});
        config.floor = 6, config.budget_entries = 7, config.lookahead = 2;
        all.push_back({config, kind});
        config.budget_entries = 1, config.sinks = 0, config.recent = 0, config.floor = 0;
        all.push_back({config, kind});
        config.budget_entries = 9;
      }
      if (info.gate != "retention") continue;
      for (const int64_t n : {1, 2})
        all.push_back({{.policy = info.name,
                        .budget_entries = 8,
                        .lookahead = n,
                        .parity_reference = true,
                        .buffer = 5},
                       kind});
    }
  }
  return all;
}

// Several sequences take turns with passes of random length; some are removed, forked, rolled back.
void compare(const std::vector<Setting>& all) {
  Rng rng(2026);
  const ops::CpuLevel before = ops::cpu_level();
  for (const Setting& setting : all) {
    ops::set_cpu_level(setting.level);
    SCOPED_TRACE(::testing::Message()
                 << setting.config.policy << " kind " << setting.gate_kind << " scope "
                 << (setting.config.scope ? static_cast<int>(*setting.config.scope) : -1)
                 << " budget " << setting.config.budget_entries << " floor "
                 << setting.config.floor.value_or(-1) << " pins " << setting.config.pins.size()
                 << " level " << ops::cpu_level_name(setting.level));
    const bool full = setting.config.policy == "full";
    KvCache cache(sizes(full ? 400 : 3 * blocks_for_entries((14 + 9) * kRows, kRows)));
    EvictionPolicy policy(setting.config, cache.config());
    std::map<SequenceId, SetModel> models;
    const auto add = [&](int64_t salt) {
      models[cache.add_sequence()] = {setting.config,
                                      find_policy(setting.config.policy),
                                      random_filler(salt, setting.gate_kind),
                                      0,
                                      {}};
    };
    add(1), add(2);
    for (int i = 0; i < 40; ++i) {
      auto it = std::next(models.begin(), static_cast<int64_t>(rng.below(models.size())));
      const auto tokens = static_cast<int64_t>(rng.below(3) == 0 ? 1 + rng.below(9) : 1);
      const uint64_t action = rng.below(12);
      if (action == 0) {
        ASSERT_TRUE(cache.reserve(it->first, tokens));
        testing::append_layer(cache, it->first, 1, random_filler(77, 0));
        cache.rollback(it->first);
      } else if (action == 1 && models.size() < 3) {
        models[cache.fork(it->first)] = SetModel(it->second);
      } else if (action == 2 && models.size() > 1) {
        cache.remove_sequence(it->first);
        models.erase(it);
      } else {
        step(cache, policy, it->first, it->second, tokens);
      }
      if (i % 8 == 0) testing::poison_free_slots(cache);
      const CacheSnapshot snapshot = cache.snapshot();
      for (const std::string& fault : validate(snapshot)) ADD_FAILURE() << fault;
      ASSERT_LE(cache.bytes_in_use(), cache.bytes_bound());
      ASSERT_EQ(snapshot.sequences.size(), models.size());
      for (const auto& sequence : snapshot.sequences) expect_same(sequence, models.at(sequence.id));
      if (::testing::Test::HasFailure()) return;
    }
    for (const auto& [id, model] : models) testing::expect_content(cache, id, model.filler);
    if (::testing::Test::HasFailure()) return;
  }
  ops::set_cpu_level(before);
}

TEST(SetModel, survivors_are_the_same_for_every_policy_scope_and_gate) { compare(settings()); }

TEST(SetModel, survivors_are_the_same_with_pins) { compare(pinned(settings())); }

}  // namespace
}  // namespace coppice
