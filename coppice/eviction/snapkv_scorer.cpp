#include "coppice/eviction/snapkv_scorer.h"

#include "coppice/eviction/scorer_makers.h"

namespace coppice {

SnapkvOptions read_snapkv_options(ScorerSettings& settings) {
  SnapkvOptions options;
  options.window = window_within(settings, settings.options.integer("window", 32, 1, 4096));
  options.kernel = odd_kernel(settings, 7);
  options.max_pool = settings.options.word("pool", "max", {"max", "avg"}) == "max";
  return options;
}

at::Tensor SnapkvScorer::score_row(const at::Tensor& q, int64_t first, const at::Tensor& keys,
                                   std::span<const int32_t> positions) const {
  const at::Tensor mean =
      probabilities(masked_logits(q, first, keys, positions)).mean(c10::IntArrayRef{0, 1});
  return pool_before(mean, keys_before(positions, first), options_.kernel, options_.max_pool);
}

std::unique_ptr<Scorer> make_snapkv_scorer(ScorerSettings& settings) {
  return std::make_unique<SnapkvScorer>(read_snapkv_options(settings));
}

}  // namespace coppice
