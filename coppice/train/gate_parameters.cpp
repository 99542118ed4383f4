#include "coppice/train/gate_parameters.h"

#include <torch/torch.h>

#include <cmath>
#include <numbers>
#include <set>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
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

std::vector<nn::RetentionGate*> gates_of(const Model& model) {
  std::vector<nn::RetentionGate*> gates;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    auto* attention = module->as<nn::Attention>();
    if (attention == nullptr) continue;
    if (attention->gate() == nullptr) fail_argument("training: the model has no retention gates");
    gates.push_back(attention->gate().get());
  }
  if (gates.empty()) fail_argument("training: the model has no attention layer");
  return gates;
}

}  // namespace

GateWeights new_gate(const GateSpec& spec, double bias, uint64_t seed) {
  spec.validate();
  const bool shared = spec.variant == "shared";
  const bool local = spec.variant == "local";
  const bool two = spec.hidden_layers == 2;
  const int64_t g = spec.width;
  const int64_t last = shared ? spec.kv_heads * g : g;
  const int64_t heads = shared ? 1 : spec.kv_heads;
  Rng rng(seed);
  GateWeights gate{spec, {}};
  for (int64_t l = 0; l < spec.layers; ++l) {
    GateLayer layer;
    layer.w1 = normal(rng, {two ? g : last, spec.hidden_size});
    layer.c1 = torch::zeros({two ? g : last});
    if (two) {
      layer.w2 = normal(rng, {last, g});
      layer.c2 = torch::zeros({last});
    }
    const bool common = l > 0 && !local;
    const at::Tensor head = common ? gate.layers[0].head : normal(rng, {heads, g});
    layer.head = shared ? head.reshape({g}) : head;
    layer.bias = torch::full({heads}, bias, torch::kFloat);
    gate.layers.push_back(layer);
  }
  return gate;
}

std::vector<NamedParameter> gate_parameters(const Model& model) {
  std::vector<NamedParameter> parameters;
  std::set<const c10::TensorImpl*> seen;
  std::size_t layer = 0;
  for (const nn::RetentionGate* gate : gates_of(model)) {
    for (const auto& item : gate->named_parameters())
      if (seen.insert(item.value().unsafeGetTensorImpl()).second)
        parameters.push_back({fmt::format("layers.{}.{}", layer, item.key()), item.value()});
    ++layer;
  }
  return parameters;
}

GateWeights read_gate(const Model& model, const GateSpec& spec) {
  const torch::NoGradGuard no_gradient;
  GateWeights weights{spec, {}};
  for (const nn::RetentionGate* gate : gates_of(model)) {
    const auto parameters = gate->named_parameters();
    const auto copy = [&parameters](const std::string& name) {
      return parameters[name].detach().to(at::kCPU, at::kFloat, false, /*copy=*/true).contiguous();
    };
    GateLayer layer;
    layer.w1 = copy("linear1.weight");
    layer.c1 = copy("linear1.bias");
    if (spec.hidden_layers == 2) {
      layer.w2 = copy("linear2.weight");
      layer.c2 = copy("linear2.bias");
    }
    layer.head = copy(fmt::format("linear{}.weight", spec.hidden_layers + 1));
    if (spec.variant == "shared") layer.head = layer.head.reshape({spec.width});
    layer.bias = copy("bias");
    weights.layers.push_back(layer);
  }
  weights.validate();
  return weights;
}

}  // namespace coppice
