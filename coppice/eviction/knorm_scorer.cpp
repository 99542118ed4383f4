#include <cmath>

#include "coppice/eviction/scorers.h"

namespace coppice {
namespace {

class KnormScorer final : public Scorer {
 public:
  std::string_view name() const override { return "knorm"; }
  ScorerNeeds needs() const override { return {.key_norm = true}; }
  float aux(float, std::span<const float> key) const override {
    float sum = 0.0f;
    for (const float x : key) sum += x * x;
    return std::sqrt(sum);
  }
  void score(const RowEntries& entries, int64_t, std::span<float> scores) const override {
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = -entries.aux[i];
  }
};

}  // namespace

std::unique_ptr<Scorer> make_knorm_scorer() { return std::make_unique<KnormScorer>(); }

}  // namespace coppice
