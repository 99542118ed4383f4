#include "coppice/eviction/scorers.h"

namespace coppice {
namespace {

class StreamingScorer final : public Scorer {
 public:
  std::string_view name() const override { return "streaming"; }
  ScorerNeeds needs() const override { return {}; }
  // Positions above 2^24 share floats; the tie rule, newer first, keeps the order exact.
  void score(const RowEntries& entries, int64_t, std::span<float> scores) const override {
    for (std::size_t i = 0; i < scores.size(); ++i)
      scores[i] = static_cast<float>(entries.positions[i]);
  }
};

}  // namespace

float Scorer::aux(float, std::span<const float>) const { return 0.0f; }

std::unique_ptr<Scorer> make_streaming_scorer() { return std::make_unique<StreamingScorer>(); }

}  // namespace coppice
