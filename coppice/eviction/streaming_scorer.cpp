#include "coppice/eviction/scorers.h"

namespace coppice {
namespace {

class StreamingScorer final : public Scorer {
 public:
  std::string_view name() const override { return "streaming"; }
  ScorerNeeds needs() const override { return {}; }
  // Ages above 2^24 share floats; the tie rule, newer first, keeps the order exact.
  ScoreForm form() const override { return {.slope = -1.0f}; }
};

}  // namespace

float Scorer::aux(const ScoredEntry&) const { return 0.0f; }
int64_t Scorer::default_recent() const { return 0; }
void Scorer::observe(const SequenceView&, const PassQueries&) const {}
void Scorer::note(const SequenceView&) const {}
void Scorer::judge(const SequenceView&, int64_t) const {}
void Scorer::plan(const SequenceView&, const RowShares&) const {}

std::unique_ptr<Scorer> make_streaming_scorer() { return std::make_unique<StreamingScorer>(); }

}  // namespace coppice
