// Training with the cut that serving makes: the student under a drawn budget, against the model
// with its full cache.
//
//   L = mean KL(p || q) + mean NTP                                       (docs/maths.md 17, 22 to
//   24)
//
// Every document of every step draws a budget. The gates' scores on the teacher's pass tell where
// global eviction under that budget would cut at each position; in the student's pass keys past the
// cut fade. The budget holds by construction, so there is no capacity term to weigh, and
// lengthening one life shortens the others: the gradient runs through the cut. Protected first
// tokens never fade. The order that eviction uses is the same as with the paper's training, by age
// x |log beta|. Differs from arXiv:2605.09649, where attention fades by beta^age and a term of the
// loss bounds the sum of beta^age.
#pragma once

#include <cstdint>

#include "coppice/train/objective.h"

namespace coppice {

struct BudgetTraining {
  // Entries per KV head: each document's budget is drawn between them, evenly in the logarithm, and
  // from at most half of the document's length.
  double least = 32.0;
  double most = 512.0;
  int64_t sharpness = 8;  // of the cut; see ops::cut_attention
  int64_t sinks = 4;      // first tokens of a document that never fade
  double kl_weight = 1.0;
  double ntp_weight = 1.0;
  uint64_t seed = 0;

  // Throws kInvalidArgument naming what is out of range.
  void validate() const;
};

// A model whose gates take gradients; nothing else may.
class BudgetObjective final : public Objective {
 public:
  // Throws kInvalidArgument for a model without gates or with packed weights.
  BudgetObjective(Model& model, const BudgetTraining& options);

  // Measures: loss, kl, ntp; budget; mean_beta; kept_per_layer, the soft number of entries per KV
  // head that each layer holds at the end of the longest document, and its length.
  void accumulate(Model& model, const MicroBatch& micro, const StepInfo& step,
                  Measures& measures) override;

 private:
  // One for each document.
  std::vector<double> draw_budgets(const Batch& batch, int64_t step) const;

  BudgetTraining options_;
  at::Tensor head_;  // [V, C]
};

}  // namespace coppice
