// What the end-to-end objectives have in common: the frozen model with its full cache, and what is
// said when numbers stop being finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "coppice/attention/dense_backend.h"
#include "coppice/nn/attention_backend.h"
#include "coppice/ops/distillation.h"
#include "coppice/train/objective.h"

namespace coppice {

namespace nn {
class DecoderLayer;
}

// Full attention by the student's own kernel: what fades by nothing. The two passes then differ by
// the gates alone, not by the rounding of two kernels.
class TeacherBackend final : public AttentionBackend {
 public:
  at::Tensor forward(const AttentionInput& input, const Batch& batch) override;

 private:
  DenseBackend dense_;  // of layers with a window
  at::Tensor zeros_;    // [N, Hkv], log beta of nothing forgotten
};

// The layers of the model's decoder, in order.
std::vector<nn::DecoderLayer*> decoder_layers(const Model& model);

// [V, C]. Throws kInvalidArgument for packed weights.
at::Tensor output_head(const Model& model);

// Tokens [begin, end) of the document with the most of them.
std::pair<int64_t, int64_t> longest_document(const Batch& batch);

// Adds what both measure: kl, ntp and their weighted sum, quality.
void add_quality(Measures& measures, const ops::DistillResult& quality, double kl_weight,
                 double ntp_weight);

// Adds kept_per_layer: kept [L, ...], entries that rows hold at the end of a document, in the mean
// of each layer; and kept_at_tokens, that document's length.
void add_kept(Measures& measures, const at::Tensor& kept, int64_t tokens);

// Throws NotFinite with the step, `what`, the first layer whose numbers are at fault and the
// documents.
[[noreturn]] void report_not_finite(Model& model, const MicroBatch& micro, const StepInfo& step,
                                    const std::string& what);

}  // namespace coppice
