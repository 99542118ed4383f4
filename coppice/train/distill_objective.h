// The paper's training: the student, whose keys fade, against the model with its full cache.
//
//   L = mean KL(p || q) + mean NTP + lambda L_cap                      (docs/maths.md 14 to 17)
//
// One pass of the model without gradients and with full attention is the teacher; one with
// gradients over RetentionBackend is the student; the weights are the same. KL and NTP are means
// over the step's predictions with loss, the capacity term over its tokens. Source:
// arXiv:2605.09649, training objective. The teacher's pass can come from a cache on disk.
#pragma once

#include <memory>

#include "coppice/ops/capacity.h"
#include "coppice/train/objective.h"

namespace coppice {

class TeacherCache;

struct DistillTraining {
  double lambda = 1.0;
  // Entries per KV head: from capacity_start at step 0 in a line to capacity, which holds from the
  // share `capacity_ramp` of all steps on.
  double capacity = 128.0;
  double capacity_start = 128.0;
  double capacity_ramp = 0.0;
  ops::CapacityScope scope = ops::CapacityScope::kGlobal;
  double kl_weight = 1.0;
  double ntp_weight = 1.0;
  bool recompute = false;  // of each layer's activations

  double capacity_at(int64_t step, int64_t steps) const;
  // Throws kInvalidArgument naming what is out of range.
  void validate() const;
};

// A model whose gates take gradients; nothing else may.
class DistillObjective final : public Objective {
 public:
  // `cache` may be null, and must outlive the objective. Throws kInvalidArgument for a model
  // without gates or with packed weights.
  DistillObjective(Model& model, const DistillTraining& options, TeacherCache* cache = nullptr);
  ~DistillObjective() override;

  // Measures: loss, kl, ntp, capacity, capacity_target; mean_beta; kept_per_layer, the soft number
  // of entries per KV head that each layer holds at the end of the longest document, and its
  // length.
  void accumulate(Model& model, const MicroBatch& micro, const StepInfo& step,
                  Measures& measures) override;

 private:
  DistillTraining options_;
  TeacherCache* cache_;
  at::Tensor head_;  // [V, C]
};

}  // namespace coppice
