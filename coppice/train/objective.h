// What training minimises: the seam between the trainer, which knows steps, and losses, which know
// models. A training run picks an Objective; the trainer has no branch on which one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "coppice/nn/batch.h"
#include "coppice/train/gate_parameters.h"
#include "coppice/train/measures.h"
#include "coppice/train/packer.h"

namespace coppice {

struct Model;

struct MicroBatch {
  Batch batch;         // documents packed, positions from 0 in each
  at::Tensor targets;  // [N] int64, kNoTarget where there is no loss
  int64_t num_targets = 0;
  std::vector<std::string> labels;  // of its documents, for messages
  int64_t index = 0;                // among those of a step in this process
};

MicroBatch make_micro_batch(const Row& row);

// The whole step that a micro-batch is a part of. Means are over the step, so that a step's
// gradient is the same however it is split.
struct StepInfo {
  int64_t step = 0;     // from 0
  int64_t steps = 1;    // of the run
  int64_t tokens = 0;   // of all micro-batches of the step
  int64_t targets = 0;  // likewise
};

// A loss or a gradient that is not finite. The message says what and where.
class NotFinite final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Objective {
  virtual ~Objective() = default;

  // Adds this micro-batch's share of the gradient of the step's loss to the parameters' gradients,
  // and what it measured to `measures`. Throws NotFinite before any gradient is touched.
  virtual void accumulate(Model& model, const MicroBatch& micro, const StepInfo& step,
                          Measures& measures) = 0;

  // How many steps in a row work on the same rows; the trainer brings new ones after that.
  virtual int64_t steps_per_batch() const { return 1; }
  // New rows are coming: what was kept of the old ones may go.
  virtual void begin_batch() {}

  // Parameters besides the gates'.
  virtual std::vector<NamedParameter> parameters() { return {}; }
};

}  // namespace coppice
