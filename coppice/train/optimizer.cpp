#include "coppice/train/optimizer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "coppice/core/error.h"

namespace coppice {

double Schedule::at(int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (steps <= warmup + 1) return peak;
  const double done = static_cast<double>(std::min(step, steps - 1) - warmup) /
                      static_cast<double>(steps - 1 - warmup);
  return floor + (peak - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

AdamW::AdamW(const std::vector<NamedParameter>& parameters, const AdamOptions& options)
    : options_(options) {
  if (parameters.empty()) fail_argument("optimizer: there is nothing to train");
  const torch::NoGradGuard no_gradient;
  std::vector<NamedParameter> ordered = parameters;
  std::ranges::stable_partition(ordered, [](const auto& p) { return p.value.dim() > 1; });
  int64_t size = 0;
  for (const NamedParameter& parameter : ordered) {
    if (parameter.value.scalar_type() != at::kFloat)
      fail_argument("optimizer: {} must be float32", parameter.name);
    layout_ += fmt::format("{} {}\n", parameter.name, parameter.value.numel());
    size += parameter.value.numel();
    if (parameter.value.dim() > 1) decayed_ = size;
  }
  const auto like = ordered.front().value.options().requires_grad(false);
  values_ = torch::empty({size}, like);
  gradients_ = torch::zeros({size}, like);
  first_ = torch::zeros({size}, like);
  second_ = torch::zeros({size}, like);
  int64_t at = 0;
  for (NamedParameter& parameter : ordered) {
    at::Tensor& value = parameter.value;
    const int64_t count = value.numel();
    const at::Tensor place = values_.narrow(0, at, count).view(value.sizes());
    place.copy_(value);
    value.set_data(place);
    value.requires_grad_(true);
    value.mutable_grad() = gradients_.narrow(0, at, count).view(value.sizes());
    at += count;
  }
}

double AdamW::clip(double max_norm) {
  // Squares of millions of small values, added up in float32, would come out short by 1 in 2,000.
  const double norm = at::linalg_vector_norm(gradients_, 2, {}, false, at::kDouble).item<double>();
  if (std::isfinite(norm) && max_norm > 0 && norm > max_norm) gradients_.mul_(max_norm / norm);
  return norm;
}

void AdamW::step(double learning_rate) {
  const torch::NoGradGuard no_gradient;
  ++updates_;
  const auto t = static_cast<double>(updates_);
  first_.mul_(options_.beta1).add_(gradients_, 1.0 - options_.beta1);
  second_.mul_(options_.beta2).addcmul_(gradients_, gradients_, 1.0 - options_.beta2);
  const double scale1 = 1.0 - std::pow(options_.beta1, t);
  const double scale2 = 1.0 - std::pow(options_.beta2, t);
  const at::Tensor divisor = (second_ / scale2).sqrt_().add_(options_.eps);
  if (options_.weight_decay > 0)
    values_.narrow(0, 0, decayed_).mul_(1.0 - learning_rate * options_.weight_decay);
  values_.addcdiv_(first_, divisor, -learning_rate / scale1);
}

}  // namespace coppice
