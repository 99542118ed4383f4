#include "coppice/train/distill_objective.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "coppice/attention/retention_backend.h"
#include "coppice/core/error.h"
#include "coppice/models/model.h"
#include "coppice/nn/decoder_layer.h"
#include "coppice/ops/distillation.h"
#include "coppice/train/teacher.h"
#include "coppice/train/teacher_cache.h"

namespace coppice {
namespace {

// x as it is; the gradient that comes back grows by `extra`.
struct AddGradient final : torch::autograd::Function<AddGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& extra) {
    context->save_for_backward({extra});
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] + context->get_saved_variables()[0], at::Tensor()};
  }
};

// The student's backend. With recomputed activations the first pass records nothing, so the
// gradient of the capacity term is worked out apart and enters when a layer runs again.
class StudentBackend final : public AttentionBackend {
 public:
  at::Tensor forward(const AttentionInput& input, const Batch& batch) override {
    if (!extra_.defined() || !input.log_beta.requires_grad()) return inner_.forward(input, batch);
    AttentionInput with_extra = input;
    with_extra.log_beta = AddGradient::apply(input.log_beta, extra_.select(1, input.layer));
    return inner_.forward(with_extra, batch);
  }

  at::Tensor log_betas() const { return torch::stack(inner_.log_betas(), 1); }  // [N, L, Hkv]
  void set_extra(at::Tensor extra) { extra_ = std::move(extra); }

 private:
  RetentionBackend inner_;
  at::Tensor extra_;  // [N, L, Hkv]
};

// log_betas [N, L, Hkv] -> entries that each row holds at the end of one document, [L, Hkv].
at::Tensor kept_at_end(const at::Tensor& log_betas, int64_t begin, int64_t end) {
  const at::Tensor own = log_betas.slice(0, begin, end);
  const at::Tensor age =
      torch::arange(end - begin - 1, -1, -1, own.options()).unsqueeze(1).unsqueeze(2);
  return (own * age).exp().sum(0);
}

}  // namespace

double DistillTraining::capacity_at(int64_t step, int64_t steps) const {
  const double whole = capacity_ramp * static_cast<double>(steps);
  if (whole <= 0 || static_cast<double>(step) >= whole) return capacity;
  return capacity_start + (capacity - capacity_start) * static_cast<double>(step) / whole;
}

void DistillTraining::validate() const {
  const auto check = [](bool good, const char* what, double got) {
    if (!good) fail_argument("training: {}, got {}", what, got);
  };
  check(std::isfinite(lambda) && lambda >= 0, "lambda must be 0 or more", lambda);
  check(std::isfinite(capacity) && capacity > 0, "the capacity must be above 0", capacity);
  check(std::isfinite(capacity_start) && capacity_start > 0, "the capacity must start above 0",
        capacity_start);
  check(capacity_ramp >= 0 && capacity_ramp <= 1, "the capacity's ramp is a share of the steps",
        capacity_ramp);
  check(kl_weight >= 0 && ntp_weight >= 0, "weights of losses must be 0 or more",
        std::min(kl_weight, ntp_weight));
}

DistillObjective::DistillObjective(Model& model, const DistillTraining& options,
                                   TeacherCache* cache)
    : options_(options), cache_(cache), head_(output_head(model)) {
  options_.validate();
  gate_parameters(model);  // refuses a model without gates
  for (nn::DecoderLayer* layer : decoder_layers(model)) layer->set_recompute(options_.recompute);
}

DistillObjective::~DistillObjective() = default;

void DistillObjective::accumulate(Model& model, const MicroBatch& micro, const StepInfo& step,
                                  Measures& measures) {
  const Batch& batch = micro.batch;
  at::Tensor teacher;
  if (options_.kl_weight > 0) {
    const torch::NoGradGuard no_gradient;
    const auto forward = [&model](const Batch& documents) {
      TeacherBackend full;
      return model.forward(documents, full);
    };
    teacher = cache_ == nullptr ? forward(batch) : cache_->hidden(batch, forward);
  }
  StudentBackend backend;
  const at::Tensor hidden = model.forward(batch, backend);
  const ops::DistillResult quality =
      ops::distill_loss(hidden, teacher, head_, micro.targets,
                        {.kl_weight = options_.kl_weight, .ntp_weight = options_.ntp_weight});

  at::Tensor log_betas = backend.log_betas();
  const bool apart = !log_betas.requires_grad();
  if (apart) log_betas = log_betas.detach().requires_grad_(true);
  const double target = options_.capacity_at(step.step, step.steps);
  const at::Tensor capacity =
      ops::capacity_loss(log_betas, batch.cu_seqlens, target, options_.scope);

  const double over = capacity.item<double>();
  const auto tokens = static_cast<double>(batch.num_tokens());
  const auto targets = static_cast<double>(quality.tokens);
  const double quality_share = step.targets > 0 ? targets / static_cast<double>(step.targets) : 0;
  const double capacity_share = options_.lambda * tokens / static_cast<double>(step.tokens);
  if (!std::isfinite(quality.kl + quality.ntp))
    report_not_finite(model, micro, step, "the loss (KL and NTP)");
  if (!std::isfinite(over)) report_not_finite(model, micro, step, "the capacity term");

  const at::Tensor capacity_part = capacity * capacity_share;
  const at::Tensor quality_part = quality.loss * quality_share;
  if (apart) {
    capacity_part.backward();
    backend.set_extra(log_betas.grad());
    // The layers must run again also when no token has a target.
    (quality_part.requires_grad() ? quality_part : hidden.sum() * 0.0).backward();
  } else {
    (quality_part + capacity_part).backward();
  }

  add_quality(measures, quality, options_.kl_weight, options_.ntp_weight);
  measures.add("capacity", over, tokens);
  measures.add("capacity_target", target, 1.0);
  const torch::NoGradGuard no_gradient;
  const at::Tensor fixed = log_betas.detach();
  measures.add("mean_beta", fixed.exp().mean().item<double>(), tokens);
  const auto [begin, end] = longest_document(batch);
  add_kept(measures, kept_at_end(fixed, begin, end), end - begin);
}

}  // namespace coppice
