#include <torch/torch.h>

#include <memory>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/loader/gate_checkpoint.h"
#include "coppice/models/load.h"
#include "coppice/nn/attention.h"

namespace coppice {
namespace {

std::vector<nn::Attention*> attention_layers(const Model& model) {
  std::vector<nn::Attention*> layers;
  for (const auto& module : model.modules(/*include_self=*/false))
    if (auto* attention = module->as<nn::Attention>()) layers.push_back(attention);
  return layers;
}

nn::GateVariant variant_of(const GateSpec& spec) {
  if (spec.variant == "shared") return nn::GateVariant::kShared;
  if (spec.variant == "head-row") return nn::GateVariant::kHeadRow;
  if (spec.variant == "local") return nn::GateVariant::kLocal;
  fail_argument("gate: expected the variant shared, head-row or local, got \"{}\"", spec.variant);
}

// Copies, so that training a gate leaves the loaded weights alone. A parameter that layers share is
// written several times with the same values.
void fill(nn::RetentionGate& gate, const GateLayer& layer) {
  const auto parameters = gate.named_parameters();
  const auto set = [&](const std::string& name, const at::Tensor& value) {
    at::Tensor target = parameters[name];
    target.copy_(value.view(target.sizes()));
  };
  set("linear1.weight", layer.w1);
  set("linear1.bias", layer.c1);
  if (gate.options().hidden_layers == 2) {
    set("linear2.weight", layer.w2);
    set("linear2.bias", layer.c2);
  }
  set(fmt::format("linear{}.weight", gate.options().hidden_layers + 1), layer.head);
  set("bias", layer.bias);
}

}  // namespace

void attach_gate(Model& model, const GateWeights& gate) {
  gate.validate();
  const ModelArgs& args = model.args();
  check_gate(gate.spec, {args.num_hidden_layers, args.num_key_value_heads, args.hidden_size, ""});
  const std::vector<nn::Attention*> layers = attention_layers(model);
  if (layers.size() != gate.layers.size())
    fail_argument("gate: expected {} layers, one per attention layer of the model, got {}",
                  layers.size(), gate.layers.size());
  if (has_gate(model)) fail_argument("gate: the model has gates already");

  nn::RetentionGateOptions options;
  options.variant = variant_of(gate.spec);
  options.hidden_size = gate.spec.hidden_size;
  options.width = gate.spec.width;
  options.num_kv_heads = gate.spec.kv_heads;
  options.hidden_layers = gate.spec.hidden_layers;
  const torch::NoGradGuard no_gradient;
  // Every gate is filled before any is packed: a head that layers share is packed with the first.
  std::vector<std::shared_ptr<nn::RetentionGate>> modules;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    modules.push_back(
        std::make_shared<nn::RetentionGate>(options, i == 0 ? nullptr : modules.front().get()));
    fill(*modules.back(), gate.layers[i]);
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i]->is_packed()) modules[i]->pack();
    layers[i]->attach_gate(std::move(modules[i]));
    layers[i]->gate()->train(model.is_training());
  }
}

bool has_gate(const Model& model) {
  const std::vector<nn::Attention*> layers = attention_layers(model);
  return !layers.empty() && layers.front()->gate() != nullptr;
}

int64_t gate_bytes(const GateWeights& gate, bool packed) {
  const auto floats = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.numel() * static_cast<int64_t>(sizeof(float)) : 0;
  };
  const auto matrix = [&](const at::Tensor& tensor) {
    if (!packed || !tensor.defined()) return floats(tensor);
    const at::Tensor rows = tensor.dim() == 1 ? tensor.unsqueeze(0) : tensor;
    const auto type = nn::RetentionGate::packed_type(rows);
    return type ? ops::packed_bytes(*type, rows.size(0), rows.size(1)) : floats(tensor);
  };
  int64_t bytes = 0;
  for (std::size_t i = 0; i < gate.layers.size(); ++i) {
    const GateLayer& layer = gate.layers[i];
    bytes += matrix(layer.w1) + floats(layer.c1) + matrix(layer.w2) + floats(layer.c2);
    if (i == 0 || gate.spec.variant == "local") bytes += matrix(layer.head);
    if (i == 0 || gate.spec.variant != "shared") bytes += floats(layer.bias);
  }
  return bytes;
}

}  // namespace coppice
