// Held-out documents under real eviction, between training steps: what a user of the gate gets.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/train_options.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/loader/gate_checkpoint.h"
#include "coppice/train/encode_document.h"

namespace coppice {

class TrainEvaluation final {
 public:
  // Reads the documents: the first ones of options.eval_data with at least options.eval_context
  // tokens. Throws kInvalidArgument when there is none. `checkpoint` must outlive it.
  TrainEvaluation(const TrainOptions& options, const Checkpoint& checkpoint,
                  const DocumentEncoder& encoder);

  // {"documents", "context", "full": perplexity, "budgets": [{"budget", "perplexity", "ratio"}]}.
  Json run(const GateWeights& gate);

 private:
  double perplexity(const GateWeights& gate, const std::string& policy, int64_t budget) const;

  const Checkpoint& checkpoint_;
  std::vector<int64_t> budgets_;
  int64_t context_;
  std::vector<int32_t> ids_;  // all documents, `context_` tokens each
  double full_ = 0.0;         // of the model alone, once known
};

}  // namespace coppice
