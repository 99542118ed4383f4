// Gates whose score does not fade, fitted to what repeating a text looks at (docs/maths.md 25, 26).
//
// A document of n tokens is read as [before; document; between; document], where `between` asks for
// the repetition. What the queries behind the first copy look at there, is its worth:
//
//   kind       label of entry i, one KV head                          loss
//   kvzap      ln s+, s+ = max P |W v_i| / |x_t| over queries t of    (score - ln s+)^2
//              the second copy
//   fastkvzip  s = max P over all queries from `between` on           BCE(e^score, s)
//
// with maxima over the query heads of the group too, P the softmax weight over the whole pass, x
// the input norm's output, W the query head's part of the output projection. Losses are means over
// tokens, layers and heads.
//
// Sources: KVzip arXiv:2505.23416, Fast KVzip arXiv:2601.17668, KVzap arXiv:2601.07891. Differs
// from the published trainers: the base's documents and our optimizer; one chunk, so documents
// above 2,000 tokens are for the caller to cut; tokens are drawn from the rows at hand, not from a
// store.
#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "coppice/ops/need_labels.h"
#include "coppice/train/objective.h"

namespace coppice {

struct RepeatTraining {
  std::vector<int64_t> before;      // token ids; may be empty
  std::vector<int64_t> between;     // at least one
  int64_t updates = 16;             // steps on the same rows
  int64_t tokens_per_update = 512;  // drawn from a row for each
  uint64_t seed = 0;

  // Throws kInvalidArgument naming what is out of range.
  void validate() const;
};

// What one kind of gate is fitted to.
struct RepeatTarget {
  std::string_view kind;
  ops::NeedUtility utility;
  bool between_asks;  // queries of `between` count
  // score and ln of the label, [n, L, Hkv] float32 -> mean loss
  at::Tensor (*loss)(const at::Tensor& score, const at::Tensor& label);
};
// Throws kInvalidArgument for a kind that is not fitted this way.
const RepeatTarget& repeat_target(std::string_view kind);

// A pass over a batch's documents, each repeated.
struct RepeatLabels {
  std::vector<at::Tensor> inputs;  // of each layer [N, C]: what the gate reads of the first copies
  at::Tensor labels;               // [N, L, Hkv] float32: ln of the label
};
RepeatLabels repeat_labels(Model& model, const Batch& batch, const RepeatTraining& options,
                           const RepeatTarget& target);

class RepeatObjective final : public Objective {
 public:
  // Throws kInvalidArgument for a model without such gates or with packed weights.
  RepeatObjective(Model& model, const RepeatTraining& options);

  // Measures: loss, repeat (the same), r2 (squared correlation of score and ln label, the mean of
  // heads), mean_score.
  void accumulate(Model& model, const MicroBatch& micro, const StepInfo& step,
                  Measures& measures) override;
  int64_t steps_per_batch() const override { return options_.updates; }
  void begin_batch() override { features_.clear(); }

 private:
  RepeatTraining options_;
  const RepeatTarget& target_;
  std::map<int64_t, RepeatLabels> features_;  // by micro-batch
};

}  // namespace coppice
