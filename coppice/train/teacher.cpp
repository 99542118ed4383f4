#include "coppice/train/teacher.h"

#include <torch/torch.h>

#include "coppice/attention/retention_backend.h"
#include "coppice/core/error.h"
#include "coppice/models/model.h"
#include "coppice/nn/decoder_layer.h"
#include "coppice/ops/retention_attention.h"

namespace coppice {
namespace {

// Passes on to another backend and notes the first layer whose numbers are not all finite.
class WatchingBackend final : public AttentionBackend {
 public:
  at::Tensor forward(const AttentionInput& input, const Batch& batch) override {
    at::Tensor result = inner_.forward(input, batch);
    for (const auto& [what, tensor] : {std::pair{"query", input.q},
                                       {"key", input.k},
                                       {"value", input.v},
                                       {"log beta", input.log_beta},
                                       {"attention output", result}}) {
      if (layer_ < 0 && !tensor.isfinite().all().item<bool>()) layer_ = input.layer, what_ = what;
    }
    return result;
  }

  std::string finding() const {
    return layer_ < 0 ? "all layers give finite numbers; the fault is behind them"
                      : fmt::format("first in layer {}: its {}", layer_, what_);
  }

 private:
  RetentionBackend inner_;
  int64_t layer_ = -1;
  const char* what_ = "";
};

}  // namespace

at::Tensor TeacherBackend::forward(const AttentionInput& input, const Batch& batch) {
  if (input.window > 0) return dense_.forward(input, batch);
  if (!zeros_.defined()) {
    const bool wide = input.q.scalar_type() == at::kDouble;
    zeros_ = torch::zeros({input.k.size(0), input.k.size(1)},
                          input.k.options().dtype(wide ? at::kDouble : at::kFloat));
  }
  return ops::retention_attention(input.q, input.k, input.v, zeros_, batch.cu_seqlens, input.scale);
}

std::vector<nn::DecoderLayer*> decoder_layers(const Model& model) {
  std::vector<nn::DecoderLayer*> layers;
  for (const auto& module : model.modules(/*include_self=*/false))
    if (auto* layer = module->as<nn::DecoderLayer>()) layers.push_back(layer);
  return layers;
}

at::Tensor output_head(const Model& model) {
  const auto parameters = model.named_parameters();
  for (const char* name : {"lm_head.weight", "model.embed_tokens.weight"})
    if (const at::Tensor* weight = parameters.find(name)) return weight->detach();
  fail_argument("training needs dense weights, and this model's are packed");
}

std::pair<int64_t, int64_t> longest_document(const Batch& batch) {
  std::pair<int64_t, int64_t> best{0, 0};
  for (int64_t b = 0; b < batch.num_sequences(); ++b) {
    const auto at = static_cast<std::size_t>(b);
    const int64_t begin = batch.cu_seqlens[at], end = batch.cu_seqlens[at + 1];
    if (end - begin > best.second - best.first) best = {begin, end};
  }
  return best;
}

void add_quality(Measures& measures, const ops::DistillResult& quality, double kl_weight,
                 double ntp_weight) {
  const auto targets = static_cast<double>(quality.tokens);
  measures.add("kl", quality.kl, targets);
  measures.add("ntp", quality.ntp, targets);
  measures.add("quality", kl_weight * quality.kl + ntp_weight * quality.ntp, targets);
}

void add_kept(Measures& measures, const at::Tensor& kept, int64_t tokens) {
  const at::Tensor mean = kept.flatten(1).mean(1).to(at::kCPU, at::kDouble).contiguous();
  const double* const from = mean.const_data_ptr<double>();
  measures.add("kept_per_layer", std::vector<double>(from, from + mean.numel()), 1.0);
  measures.add("kept_at_tokens", static_cast<double>(tokens), 1.0);
}

void report_not_finite(Model& model, const MicroBatch& micro, const StepInfo& step,
                       const std::string& what) {
  const torch::NoGradGuard no_gradient;
  WatchingBackend backend;
  model.forward(micro.batch, backend);
  throw NotFinite(fmt::format("step {}: {} is not finite; {}; documents: {}", step.step + 1, what,
                              backend.finding(), fmt::join(micro.labels, "; ")));
}

}  // namespace coppice
