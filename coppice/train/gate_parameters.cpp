#include "coppice/train/gate_parameters.h"

#include <torch/torch.h>

#include <cmath>
#include <numbers>
#include <set>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/loader/gate_parts.h"
#include "coppice/models/model.h"
#include "coppice/nn/attention.h"

namespace coppice {
namespace {

constexpr double kInitialDeviation = 0.02;

// Normal numbers by the Box-Muller transform: the same on every machine, as those of a library are
// not.
at::Tensor normal(Rng& rng, at::IntArrayRef shape) {
  at::Tensor values = torch::empty(shape, torch::kFloat);
  float* to = values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - rng.uniform()));
    const double angle = 2.0 * std::numbers::pi * rng.uniform();
    to[i] = static_cast<float>(kInitialDeviation * radius * std::cos(angle));
  }
  return values;
}

std::vector<nn::Gate*> gates_of(const Model& model) {
  std::vector<nn::Gate*> gates;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    auto* attention = module->as<nn::Attention>();
    if (attention == nullptr) continue;
    if (attention->gate() == nullptr) fail_argument("training: the model has no gates");
    gates.push_back(attention->gate().get());
  }
  if (gates.empty()) fail_argument("training: the model has no attention layer");
  return gates;
}

}  // namespace

GateWeights new_gate(const GateSpec& spec, double bias, uint64_t seed) {
  const std::vector<GatePart> parts = gate_parts(spec);
  Rng rng(seed);
  GateWeights gate{spec, {}};
  for (int64_t l = 0; l < spec.layers; ++l) {
    GateLayer layer;
    for (const GatePart& part : parts) {
      at::Tensor& to = layer.*part.tensor;
      if (part.shared && l > 0)
        to = gate.layers[0].*part.tensor;
      else if (part.start == GateStart::kDrawn)
        to = normal(rng, part.shape);
      else
        to = torch::full(part.shape,
                         part.start == GateStart::kBias  ? bias
                         : part.start == GateStart::kOne ? 1.0
                                                         : 0.0,
                         torch::kFloat);
    }
    gate.layers.push_back(layer);
  }
  return gate;
}

std::vector<NamedParameter> gate_parameters(const Model& model) {
  std::vector<NamedParameter> parameters;
  std::set<const c10::TensorImpl*> seen;
  std::size_t layer = 0;
  for (const nn::Gate* gate : gates_of(model)) {
    for (const auto& item : gate->named_parameters())
      if (seen.insert(item.value().unsafeGetTensorImpl()).second)
        parameters.push_back({fmt::format("layers.{}.{}", layer, item.key()), item.value()});
    ++layer;
  }
  return parameters;
}

GateWeights read_gate(const Model& model, const GateSpec& spec) {
  const torch::NoGradGuard no_gradient;
  const std::vector<GatePart> parts = gate_parts(spec);
  GateWeights weights{spec, {}};
  for (const nn::Gate* gate : gates_of(model)) {
    const auto parameters = gate->named_parameters();
    GateLayer layer;
    for (const GatePart& part : parts)
      layer.*part.tensor = parameters[part.parameter]
                               .detach()
                               .to(at::kCPU, at::kFloat, false, /*copy=*/true)
                               .contiguous()
                               .view(part.shape);
    weights.layers.push_back(layer);
  }
  weights.validate();
  return weights;
}

}  // namespace coppice
