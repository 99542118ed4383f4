// The first stage of training: gates learn how long the frozen model still needs each entry, from
// forward passes alone.
//
// With zeta = -ln(-log beta), the log-lifetime, entry i is still needed beyond age a with log-odds
// (zeta_i - ln a) / sigma; one sigma for all heads keeps scores comparable. Labels are the
// utilities of ops/need_labels.h: y_i(b) = the share of thresholds that the largest utility at ages
// from bin b on reaches. A bin counts only where the document goes on for twice its age: dropping
// what was not seen whatever its label leaves no bias.
//
//   L_surv = mean over entries and valid bins of BCE((zeta_i - ln a_b) / sigma, y_i(b))
//   L_pair = mean softplus(-sgn(F_i - F_j)(rho_i - rho_j) / sigma)     rho = zeta - ln age at the
//   cut L      = L_surv + pair_weight L_pair
//
// Source: docs/maths.md, survival labels; beyond arXiv:2605.09649. Differs from a full recipe: head
// sensitivities are 1.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "coppice/ops/need_labels.h"
#include "coppice/train/objective.h"

namespace coppice {

struct SurvivalTraining {
  // ln theta_k: an entry is needed under budget k while its utility reaches it. From
  // calibrate_thresholds.
  std::vector<double> log_thresholds;
  ops::NeedUtility utility = ops::NeedUtility::kLeaveOneOut;
  int64_t updates = 16;             // steps on the same rows
  int64_t tokens_per_update = 512;  // drawn from a row for each
  double pair_weight = 0.2;
  int64_t pairs = 4096;   // per cut
  double pair_gap = 0.5;  // nats of utility that a pair must be apart
  uint64_t seed = 0;

  // Throws kInvalidArgument naming what is out of range.
  void validate() const;
};

class SurvivalObjective final : public Objective {
 public:
  // Throws kInvalidArgument for a model without gates or with packed weights.
  SurvivalObjective(Model& model, const SurvivalTraining& options);
  ~SurvivalObjective() override;

  // Measures: survival, pair, loss, sigma, mean_beta.
  void accumulate(Model& model, const MicroBatch& micro, const StepInfo& step,
                  Measures& measures) override;
  int64_t steps_per_batch() const override { return options_.updates; }
  void begin_batch() override;
  std::vector<NamedParameter> parameters() override { return {{"sigma", sigma_}}; }

 private:
  struct Features;
  const Features& features_of(Model& model, const MicroBatch& micro);

  SurvivalTraining options_;
  at::Tensor sigma_;                                       // [1]
  std::map<int64_t, std::unique_ptr<Features>> features_;  // by micro-batch
};

// ln theta for each budget: the utility that, over these rows, as many entries per row of the cache
// reach after the middle of their document as the budget holds. Documents shorter than four times
// the largest budget show less than it and count all the same. Budgets below 1 are refused.
std::vector<double> calibrate_thresholds(Model& model, const std::vector<Row>& rows,
                                         const std::vector<double>& budgets,
                                         ops::NeedUtility utility);

}  // namespace coppice
