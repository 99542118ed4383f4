#include "coppice/eviction/scorers.h"

namespace coppice {
namespace {

class StaticGateScorer final : public Scorer {
 public:
  StaticGateScorer(std::string_view kind, std::optional<float> threshold)
      : kind_(kind), threshold_(threshold) {}

  std::string_view name() const override { return kind_; }
  ScorerNeeds needs() const override { return {.gate = kind_}; }
  float aux(const ScoredEntry& entry) const override { return entry.log_beta; }
  ScoreForm form() const override { return {.aux_weight = 1.0f}; }
  std::optional<float> threshold() const override { return threshold_; }
  int64_t default_recent() const override { return 128; }

 private:
  std::string_view kind_;
  std::optional<float> threshold_;
};

}  // namespace

std::unique_ptr<Scorer> make_static_gate_scorer(std::string_view kind,
                                                std::optional<float> threshold) {
  return std::make_unique<StaticGateScorer>(kind, threshold);
}

}  // namespace coppice
