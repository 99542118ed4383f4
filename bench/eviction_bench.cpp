// Micro-benchmarks of the cache and of eviction, at the sizes of SmolLM2-135M (30 layers, 3 KV
// heads, D = 64). Run: build/release/coppice_eviction_bench
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include <cmath>
#include <string>

#include "coppice/cache/memory_plan.h"
#include "coppice/core/rng.h"
#include "coppice/eviction/policy.h"

namespace coppice {
namespace {

constexpr int64_t kMaxPass = 128;

CacheConfig sizes(int64_t budget) {
  CacheConfig config{.num_layers = 30, .num_kv_heads = 3, .head_dim = 64, .dtype = at::kHalf};
  config.max_blocks = plan_memory(config, budget, kMaxPass).max_blocks;
  return config;
}

// A pass without a model: what the cache does beside attention.
struct Runner {
  Runner(const std::string& name, int64_t budget)
      : cache(sizes(budget)),
        policy({.policy = name, .budget_entries = budget}, cache.config()),
        id(cache.add_sequence()) {}

  void append(int64_t tokens) {
    if (!cache.reserve(id, tokens)) throw std::runtime_error("the plan was too small");
    const at::Tensor k = at::randn({tokens, 3, 64}), v = at::randn({tokens, 3, 64});
    at::Tensor log_beta = at::empty({tokens, 3}, at::kFloat);
    for (int64_t layer = 0; layer < 30; ++layer) {
      for (int64_t i = 0; i < tokens * 3; ++i)
        log_beta.mutable_data_ptr<float>()[i] =
            -std::exp(-12.0f * static_cast<float>(rng.uniform()));
      cache.append(layer, id, k, v, log_beta, at::Tensor());
    }
  }

  KvCache cache;
  EvictionPolicy policy;
  SequenceId id;
  Rng rng{1};
};

// Arguments: budget per head, tokens of a pass. The sequence is full, so a pass of T tokens evicts
// T x 90 entries.
template <bool kEvict>
void pass(benchmark::State& state, const std::string& name) {
  Runner runner(name, state.range(0));
  const int64_t tokens = state.range(1);
  const auto finish = [&] {
    runner.policy.note_appended(runner.cache, runner.id);
    runner.cache.commit(runner.id);
  };
  for (int64_t t = 0; t < 3 * state.range(0); t += kMaxPass / 4) {
    runner.append(kMaxPass / 4);
    finish();
    runner.policy.evict(runner.cache, runner.id);
  }
  for (auto _ : state) {
    state.PauseTiming();
    if (kEvict) runner.append(tokens);
    state.ResumeTiming();
    if (!kEvict) runner.append(tokens);
    if (!kEvict) state.PauseTiming();
    finish();
    benchmark::DoNotOptimize(runner.policy.evict(runner.cache, runner.id));
    if (!kEvict) state.ResumeTiming();
  }
}

void evict(benchmark::State& state, const std::string& name) { pass<true>(state, name); }
void append(benchmark::State& state) { pass<false>(state, "streaming"); }

BENCHMARK_CAPTURE(evict, dbtrimkv, "dbtrimkv")
    ->Args({256, 1})
    ->Args({256, 32})
    ->Args({256, 128})
    ->Args({1024, 1})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(evict, trimkv, "trimkv")->Args({256, 1})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(evict, streaming, "streaming")->Args({256, 1})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(evict, knorm, "knorm")->Args({256, 1})->Unit(benchmark::kMicrosecond);
BENCHMARK(append)->Args({256, 1})->Args({256, 128})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace coppice

BENCHMARK_MAIN();
