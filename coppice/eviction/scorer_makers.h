// How the table of policies makes its scorers: one function per row, and what they share. Internal
// to eviction/.
#pragma once

#include <memory>

#include "coppice/cache/cache_config.h"
#include "coppice/eviction/policy.h"
#include "coppice/eviction/scorer_options.h"
#include "coppice/eviction/scorers.h"

namespace coppice {

struct ScorerSettings {
  const EvictionConfig& config;
  const CacheConfig& cache;
  ScorerOptions options;
};

// A window of queries above half the budget counts as half the budget, at least 1.
int64_t window_within(const ScorerSettings& settings, int64_t window);
// Option kernel: an odd number of entries that pooling spans.
int64_t odd_kernel(ScorerSettings& settings, int64_t fallback);

std::unique_ptr<Scorer> make_h2o_scorer(ScorerSettings& settings);
std::unique_ptr<Scorer> make_tova_scorer(ScorerSettings& settings);
std::unique_ptr<Scorer> make_snapkv_scorer(ScorerSettings& settings);
std::unique_ptr<Scorer> make_pyramidkv_scorer(ScorerSettings& settings);
std::unique_ptr<Scorer> make_adakv_scorer(ScorerSettings& settings);
std::unique_ptr<Scorer> make_ada_pyramid_scorer(ScorerSettings& settings);
std::unique_ptr<Scorer> make_rkv_scorer(ScorerSettings& settings);
std::unique_ptr<Scorer> make_keydiff_scorer(ScorerSettings& settings);
std::unique_ptr<Scorer> make_expected_attention_scorer(ScorerSettings& settings);
std::unique_ptr<Scorer> make_cake_scorer(ScorerSettings& settings);

}  // namespace coppice
