#include <cmath>

#include "coppice/eviction/scorers.h"

namespace coppice {
namespace {

class RetentionScorer final : public Scorer {
 public:
  RetentionScorer(int64_t lookahead, bool parity)
      : lookahead_(lookahead),
        offset_(!parity          ? 1.0f
                : lookahead == 1 ? 2.0f
                                 : 3.0f) {}

  std::string_view name() const override { return "retention"; }
  ScorerNeeds needs() const override { return {.gate = "retention"}; }
  float aux(const ScoredEntry& entry) const override {
    return retention_tail(entry.log_beta, lookahead_);
  }
  // Ages with their offset are at least 1, so minus infinity times an age is no NaN.
  ScoreForm form() const override {
    return {.slope_is_log_beta = true, .age_offset = offset_, .aux_weight = 1.0f};
  }

 private:
  int64_t lookahead_;
  float offset_;  // added to newest - position
};

}  // namespace

float retention_tail(float log_beta, int64_t lookahead) {
  if (lookahead == 1) return 0.0f;
  const auto n = static_cast<double>(lookahead);
  if (!(log_beta < 0.0f)) return static_cast<float>(std::log(n));
  const double lb = log_beta;
  return static_cast<float>(std::log(std::expm1(n * lb) / std::expm1(lb)));
}

std::unique_ptr<Scorer> make_retention_scorer(int64_t lookahead, bool parity_reference) {
  return std::make_unique<RetentionScorer>(lookahead, parity_reference);
}

}  // namespace coppice
