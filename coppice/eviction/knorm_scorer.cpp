#include <bit>
#include <cmath>
#include <cstdint>

#include "coppice/eviction/scorers.h"

namespace coppice {
namespace {

class KnormScorer final : public Scorer {
 public:
  std::string_view name() const override { return "knorm"; }
  ScorerNeeds needs() const override { return {.key_norm = true}; }
  // Rounded to 13 of 23 bits: a token that stands twice has keys of one norm in the first layer,
  // and which of the two is kept must follow the rule for ties, not the last bits of a product.
  float aux(const ScoredEntry& entry) const override {
    float sum = 0.0f;
    for (const float x : entry.key) sum += x * x;
    const auto bits = std::bit_cast<uint32_t>(std::sqrt(sum));
    return std::bit_cast<float>((bits + 0x200U) & ~0x3FFU);
  }
  ScoreForm form() const override { return {.aux_weight = -1.0f}; }
};

}  // namespace

std::unique_ptr<Scorer> make_knorm_scorer() { return std::make_unique<KnormScorer>(); }

}  // namespace coppice
