#include "coppice/train/budget_objective.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "coppice/attention/cut_backend.h"
#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/models/model.h"
#include "coppice/nn/decoder_layer.h"
#include "coppice/nn/retention_gate.h"
#include "coppice/ops/budget_pressure.h"
#include "coppice/ops/distillation.h"
#include "coppice/ops/documents.h"
#include "coppice/train/document_stream.h"
#include "coppice/train/teacher.h"

namespace coppice {
namespace {

// While it lives, every layer's gate scores what passes by, with a gradient for the gate alone.
class GateWatch final {
 public:
  explicit GateWatch(Model& model) : layers_(decoder_layers(model)) {
    for (nn::DecoderLayer* layer : layers_)
      layer->set_observer([this, layer](int64_t, const at::Tensor&, const at::Tensor& normed) {
        const torch::AutoGradMode with_gradient(true);
        log_betas_.push_back(layer->self_attn().gate()->forward(normed.clone()));
      });
  }
  ~GateWatch() {
    for (nn::DecoderLayer* layer : layers_) layer->set_observer({});
  }
  GateWatch(const GateWatch&) = delete;
  GateWatch& operator=(const GateWatch&) = delete;

  at::Tensor log_betas() const { return torch::stack(log_betas_, 1); }  // [N, L, Hkv]

 private:
  std::vector<nn::DecoderLayer*> layers_;
  std::vector<at::Tensor> log_betas_;
};

// [N, 1]: 0 for the first `sinks` tokens of each document, 1 for the others.
at::Tensor fades_of(const Batch& batch, int64_t sinks, const at::TensorOptions& options) {
  at::Tensor fades = torch::ones({batch.num_tokens(), 1}, options);
  for (std::size_t b = 0; b + 1 < batch.cu_seqlens.size(); ++b)
    fades
        .slice(0, batch.cu_seqlens[b],
               std::min(batch.cu_seqlens[b] + sinks, batch.cu_seqlens[b + 1]))
        .zero_();
  return fades;
}

}  // namespace

void BudgetTraining::validate() const {
  if (!std::isfinite(least) || !std::isfinite(most) || least <= 0 || most < least)
    fail_argument("training: budgets run from the least, above 0, to the most, got {} to {}", least,
                  most);
  if (sinks < 0 || static_cast<double>(sinks) >= least)
    fail_argument("training: sinks must be 0 or more and below the least budget, got {}", sinks);
  ops::check_sharpness(sharpness, "training");
  if (kl_weight < 0 || ntp_weight < 0)
    fail_argument("training: weights of losses must be 0 or more, got {} and {}", kl_weight,
                  ntp_weight);
}

BudgetObjective::BudgetObjective(Model& model, const BudgetTraining& options)
    : options_(options), head_(output_head(model)) {
  options_.validate();
  gate_parameters(model);  // refuses a model without gates
}

// By what a document holds, so that it draws the same however a step's rows are split.
std::vector<double> BudgetObjective::draw_budgets(const Batch& batch, int64_t step) const {
  constexpr int64_t kTold = 32;  // tokens that tell documents apart
  const at::Tensor ids = batch.token_ids.to(at::kCPU).contiguous();
  const int64_t* const id = ids.const_data_ptr<int64_t>();
  std::vector<double> budgets;
  for (std::size_t b = 0; b + 1 < batch.cu_seqlens.size(); ++b) {
    const int64_t begin = batch.cu_seqlens[b], end = batch.cu_seqlens[b + 1];
    uint64_t seed = mix_seed(options_.seed, static_cast<uint64_t>(step));
    for (int64_t i = begin; i < std::min(begin + kTold, end); ++i)
      seed = mix_seed(seed, static_cast<uint64_t>(id[i]));
    const double half = static_cast<double>(end - begin) / 2;
    const double most = std::clamp(half, options_.least, options_.most);
    budgets.push_back(options_.least * std::pow(most / options_.least, Rng(seed).uniform()));
  }
  return budgets;
}

void BudgetObjective::accumulate(Model& model, const MicroBatch& micro, const StepInfo& step,
                                 Measures& measures) {
  const Batch& batch = micro.batch;
  at::Tensor teacher, log_betas;
  {
    const torch::NoGradGuard no_gradient;
    const GateWatch watch(model);
    TeacherBackend full;
    teacher = model.forward(batch, full);
    const torch::AutoGradMode with_gradient(true);
    log_betas = watch.log_betas();
  }
  const at::Tensor fades = fades_of(batch, options_.sinks, log_betas.options());
  const std::vector<double> budgets = draw_budgets(batch, step.step);
  const at::Tensor faded = (log_betas * fades.unsqueeze(2)).flatten(1);  // [N, L Hkv]
  const at::Tensor pressure =
      ops::budget_pressure(faded, batch.cu_seqlens, budgets, options_.sharpness);

  CutBackend backend(pressure, fades, options_.sharpness);
  const at::Tensor hidden = model.forward(batch, backend);
  const ops::DistillResult quality =
      ops::distill_loss(hidden, teacher, head_, micro.targets,
                        {.kl_weight = options_.kl_weight, .ntp_weight = options_.ntp_weight});
  const auto targets = static_cast<double>(quality.tokens);
  if (!std::isfinite(quality.kl + quality.ntp))
    report_not_finite(model, micro, step, "the loss (KL and NTP)");
  if (step.targets > 0 && quality.loss.requires_grad())
    (quality.loss * (targets / static_cast<double>(step.targets))).backward();

  const auto tokens = static_cast<double>(batch.num_tokens());
  add_quality(measures, quality, options_.kl_weight, options_.ntp_weight);
  const torch::NoGradGuard no_gradient;
  measures.add("mean_beta", log_betas.detach().exp().mean().item<double>(), tokens);
  const auto [begin, end] = longest_document(batch);
  for (std::size_t b = 0; b < budgets.size(); ++b)
    if (batch.cu_seqlens[b] == begin && end > begin) measures.add("budget", budgets[b], 1.0);
  if (end == begin) return;
  const at::Tensor held = ops::held_under_pressure(
      faded, begin, end - begin - 1, pressure[end - 1].item<double>(), options_.sharpness);
  add_kept(measures, held.view({log_betas.size(1), -1}), end - begin);
}

}  // namespace coppice
