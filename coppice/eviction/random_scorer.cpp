#include "coppice/core/rng.h"
#include "coppice/eviction/scorers.h"

namespace coppice {
namespace {

class RandomScorer final : public Scorer {
 public:
  explicit RandomScorer(uint64_t seed) : seed_(seed) {}

  std::string_view name() const override { return "random"; }
  ScorerNeeds needs() const override { return {.place = true}; }
  float aux(const ScoredEntry& entry) const override {
    const auto row = (static_cast<uint64_t>(entry.layer) << 32) | static_cast<uint64_t>(entry.head);
    const uint64_t bits = mix_seed(seed_, row, static_cast<uint64_t>(entry.position));
    return static_cast<float>(bits >> 40) * 0x1.0p-24f;
  }
  ScoreForm form() const override { return {.aux_weight = 1.0f}; }

 private:
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<Scorer> make_random_scorer(uint64_t seed) {
  return std::make_unique<RandomScorer>(seed);
}

}  // namespace coppice
