// Laws of the bound: random runs of several sequences, checked after every step.
#include "laws_testing.h"

namespace coppice {
namespace {

using namespace coppice::laws;  // NOLINT: helpers of these tests

constexpr int64_t kBudget = 12;
constexpr int64_t kMaxBlocks = 260;

// Entries that every row, or all together, must hold after `seen` tokens.
void expect_exact_budget(const Runner& runner, SequenceId id, int64_t before, int64_t count) {
  const CacheConfig& config = runner.cache.config();
  const int64_t entries = runner.cache.entries(id);
  if (!runner.policy.bounded()) {
    EXPECT_EQ(entries, runner.cache.tokens_seen(id) * config.num_rows());
    return;
  }
  // Global budgets: all that is there, up to the budget, whatever a row holds.
  EXPECT_EQ(entries, std::min(before + count * config.num_rows(), runner.policy.budget_total()));
  if (runner.policy.scope() != Scope::kHead) return;
  for (const BlockTable& row : runner.cache.rows(id))
    EXPECT_EQ(row.length, std::min(runner.cache.tokens_seen(id), kBudget));
}

struct Walk {
  Runner runner;
  Rng rng;
  std::vector<SequenceId> live;

  Walk(const std::shared_ptr<Model>& model, const PolicyInfo& info, uint64_t seed)
      : runner(model, eviction_config(info, kBudget), at::kFloat, kMaxBlocks), rng(seed) {}

  std::size_t pick() { return static_cast<std::size_t>(rng.below(live.size())); }

  // A pass of a random part of the sequences, some tokens each.
  void run_pass() {
    std::vector<std::pair<SequenceId, std::vector<int32_t>>> inputs;
    std::vector<int64_t> before;
    for (const SequenceId id : live) {
      if (rng.below(3) == 0) continue;
      const int64_t most = rng.below(2) == 0 ? 1 : 20;
      inputs.push_back({id, random_tokens(rng, 1 + static_cast<int64_t>(
                                                       rng.below(static_cast<uint64_t>(most))))});
      before.push_back(runner.cache.entries(id));
    }
    if (inputs.empty()) return;
    poison_free_slots(runner.cache);
    const int64_t in_use = runner.cache.blocks_in_use();
    try {
      EXPECT_TRUE(runner.pass(inputs).isfinite().all().item<bool>());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCapacity) << error.what();
      EXPECT_EQ(runner.cache.blocks_in_use(), in_use);
      return;
    }
    for (std::size_t i = 0; i < inputs.size(); ++i)
      expect_exact_budget(runner, inputs[i].first, before[i],
                          static_cast<int64_t>(inputs[i].second.size()));
  }

  // A pass that breaks off after the first layer.
  void fail_pass() {
    const SequenceId id = live[pick()];
    const int64_t entries = runner.cache.entries(id);
    const CacheConfig& config = runner.cache.config();
    if (!runner.cache.reserve(id, 5)) return;
    const Tensor k = torch::randn({5, config.num_kv_heads, config.head_dim});
    runner.cache.append(0, id, k, k, {}, {});
    runner.cache.rollback(id);
    EXPECT_EQ(runner.cache.entries(id), entries);
  }

  void step() {
    const uint64_t choice = live.empty() ? 0 : rng.below(12);
    if (choice == 0 && live.size() < 5) {
      live.push_back(runner.cache.add_sequence());
    } else if (choice == 1) {
      const std::size_t at = pick();
      runner.cache.remove_sequence(live[at]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (choice == 2 && live.size() < 5) {
      try {
        live.push_back(runner.cache.fork(live[pick()]));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCapacity);
      }
    } else if (choice == 3) {
      fail_pass();
    } else {
      run_pass();
    }
  }
};

TEST(CacheLaws, K08_K13_random_runs_keep_the_budget_exactly_and_the_bound_always) {
  for (const Architecture& arch : architectures()) {
    const std::shared_ptr<Model> model = tiny_model(arch.args, at::kFloat);
    for (const PolicyInfo& info : policies()) {
      SCOPED_TRACE(arch.name + ", " + info.name);
      Walk walk(model, info, 11);
      int64_t moved = 0;
      for (int64_t n = 0; n < 120; ++n) {
        walk.step();
        const std::vector<std::string> faults = validate(walk.runner.cache.snapshot());
        ASSERT_TRUE(faults.empty()) << faults.front() << " at step " << n;
        ASSERT_LE(walk.runner.cache.bytes_in_use(), walk.runner.cache.bytes_bound());
        ASSERT_LE(walk.runner.cache.peak_bytes(), walk.runner.cache.bytes_bound());
        for (const SequenceId id : walk.live) moved += walk.runner.cache.tokens_seen(id);
      }
      EXPECT_GT(moved, 1000);  // the walk fed something
      while (!walk.live.empty()) {
        walk.runner.cache.remove_sequence(walk.live.back());
        walk.live.pop_back();
      }
      EXPECT_EQ(walk.runner.cache.blocks_in_use(), 0);
    }
  }
}

TEST(CacheLaws, E05_peak_is_budget_and_one_chunk_for_any_length) {
  const ModelArgs args = tiny_args("llama");
  const std::shared_ptr<Model> model = tiny_model(args, at::kFloat);
  for (const PolicyInfo& info : policies()) {
    if (info.name == "full") continue;
    std::vector<int64_t> peaks;
    for (const int64_t length : {200, 400}) {
      Rng rng(12);
      Runner runner(model, eviction_config(info, 32), at::kFloat);
      runner.feed(runner.cache.add_sequence(), random_tokens(rng, length), 16);
      const int64_t rows = runner.cache.config().num_rows();
      EXPECT_LE(runner.cache.peak_blocks(), blocks_for_entries((32 + 16) * rows, rows));
      peaks.push_back(runner.cache.peak_blocks());
    }
    // A fixed budget per head peaks at once; a global one may still move between rows.
    if (info.scope == Scope::kHead) {
      EXPECT_EQ(peaks[0], peaks[1]) << info.name;
    }
  }
}

}  // namespace
}  // namespace coppice
