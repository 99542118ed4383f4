#include <torch/torch.h>

#include <memory>
#include <optional>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/loader/gate_parts.h"
#include "coppice/models/load.h"
#include "coppice/nn/attention.h"
#include "coppice/nn/fastkvzip_gate.h"
#include "coppice/nn/kvzap_gate.h"
#include "coppice/nn/retention_gate.h"

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
void fill(nn::Gate& gate, const GateLayer& layer, const std::vector<GatePart>& parts) {
  const auto parameters = gate.named_parameters();
  for (const GatePart& part : parts) {
    at::Tensor target = parameters[part.parameter];
    target.copy_((layer.*part.tensor).view(target.sizes()));
  }
}

// Modules of one kind for layer after layer; `first` is the first layer's, null for itself.
std::shared_ptr<nn::Gate> make_retention(const GateSpec& spec, const nn::Gate* first) {
  return std::make_shared<nn::RetentionGate>(
      nn::RetentionGateOptions{.variant = variant_of(spec),
                               .hidden_size = spec.hidden_size,
                               .width = spec.width,
                               .num_kv_heads = spec.kv_heads,
                               .hidden_layers = spec.hidden_layers},
      dynamic_cast<const nn::RetentionGate*>(first));
}

std::shared_ptr<nn::Gate> make_kvzap(const GateSpec& spec, const nn::Gate*) {
  return std::make_shared<nn::KvzapGate>(
      nn::KvzapGateOptions{.hidden_size = spec.hidden_size,
                           .width = spec.hidden_layers > 0 ? spec.width : 0,
                           .num_kv_heads = spec.kv_heads});
}

std::shared_ptr<nn::Gate> make_fastkvzip(const GateSpec& spec, const nn::Gate*) {
  return std::make_shared<nn::FastKvzipGate>(
      nn::FastKvzipGateOptions{.hidden_size = spec.hidden_size,
                               .width = spec.width,
                               .sinks = spec.sinks,
                               .num_query_heads = spec.query_heads,
                               .num_kv_heads = spec.kv_heads});
}

using Maker = std::shared_ptr<nn::Gate> (*)(const GateSpec&, const nn::Gate*);

Maker maker_of(const std::string& kind) {
  if (kind == "retention") return make_retention;
  if (kind == "kvzap") return make_kvzap;
  if (kind == "fastkvzip") return make_fastkvzip;
  fail_argument("gate: no module is made for the kind {}", kind);
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

  const Maker make = maker_of(gate.spec.kind);
  const std::vector<GatePart> parts = gate_parts(gate.spec);
  const torch::NoGradGuard no_gradient;
  // Every gate is filled before any is packed: a head that layers share is packed with the first.
  std::vector<std::shared_ptr<nn::Gate>> modules;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    modules.push_back(make(gate.spec, i == 0 ? nullptr : modules.front().get()));
    fill(*modules.back(), gate.layers[i], parts);
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i]->is_packed()) modules[i]->pack();
    layers[i]->attach_gate(std::move(modules[i]));
    layers[i]->gate()->train(model.is_training());
  }
  model.set_gate_kind(gate.spec.kind);
}

bool has_gate(const Model& model) {
  const std::vector<nn::Attention*> layers = attention_layers(model);
  return !layers.empty() && layers.front()->gate() != nullptr;
}

int64_t gate_bytes(const GateWeights& gate, bool packed) {
  const std::vector<GatePart> parts = gate_parts(gate.spec);
  int64_t bytes = 0;
  for (std::size_t i = 0; i < gate.layers.size(); ++i)
    for (const GatePart& part : parts) {
      if (i > 0 && part.shared) continue;
      const at::Tensor& tensor = gate.layers[i].*part.tensor;
      const at::Tensor rows = tensor.dim() == 1 ? tensor.unsqueeze(0) : tensor;
      const auto type = packed && part.matrix ? nn::Gate::packed_type(rows) : std::nullopt;
      bytes += type ? ops::packed_bytes(*type, rows.size(0), rows.size(1))
                    : tensor.numel() * static_cast<int64_t>(sizeof(float));
    }
  return bytes;
}

}  // namespace coppice
