// Gates under the published names; gate_checkpoint.h draws the layout.
#include <ATen/core/Tensor.h>

#include <charconv>
#include <optional>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/loader/gate_format.h"
#include "coppice/loader/gate_parts.h"
#include "coppice/ops/dequantize.h"

namespace coppice {
namespace {

constexpr std::string_view kGate = ".self_attn.retention_gate.";

struct GateKey {
  std::string_view prefix;  // "model.layers." or "model.language_model.layers."
  int64_t layer;
  std::string_view part;  // "linear1.weight", ...
};

std::optional<GateKey> split_key(std::string_view name) {
  for (const std::string_view prefix : {"model.layers.", "model.language_model.layers."}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(prefix.size());
    int64_t layer = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    if (error != std::errc() || layer < 0 || rest.starts_with('-')) return std::nullopt;
    const std::string_view tail = rest.substr(static_cast<std::size_t>(end - rest.data()));
    if (!tail.starts_with(kGate)) return std::nullopt;
    return GateKey{prefix, layer, tail.substr(kGate.size())};
  }
  return std::nullopt;
}

using Parts = std::map<std::string_view, const StoredTensor*>;

// The tensors of each layer by part; checks the names and that no layer is missing.
std::vector<Parts> sort_by_layer(const GateTensors& tensors, const std::string& what) {
  std::map<int64_t, Parts> by_layer;
  std::string_view prefix;
  for (const auto& [name, tensor] : tensors) {
    const std::optional<GateKey> key = split_key(name);
    if (!key || (!prefix.empty() && key->prefix != prefix)) {
      fail_argument("{}: {} is no tensor of a gate; expected model.layers.N{}...", what, name,
                    kGate);
    }
    prefix = key->prefix;
    by_layer[key->layer].emplace(key->part, &tensor);
  }
  std::vector<Parts> result;
  for (auto& [layer, parts] : by_layer) {
    if (layer != static_cast<int64_t>(result.size())) {
      fail_argument("{}: the gate of layer {} is missing", what, result.size());
    }
    result.push_back(std::move(parts));
  }
  return result;
}

const StoredTensor& part_of(const std::vector<Parts>& layers, std::size_t layer,
                            std::string_view part, const std::string& what) {
  const auto at = layers[layer].find(part);
  if (at == layers[layer].end()) {
    fail_argument("{}: {} of the gate of layer {} is missing", what, part, layer);
  }
  return *at->second;
}

at::Tensor read_part(const std::vector<Parts>& layers, std::size_t layer, std::string_view part,
                     const std::vector<int64_t>& shape, const std::string& what) {
  const StoredTensor& tensor = part_of(layers, layer, part, what);
  if (tensor.shape != shape) {
    fail_argument("{}: {} of the gate of layer {} has the shape [{}]; expected [{}]", what, part,
                  layer, fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
  }
  return ops::dequantize(tensor);
}

// linear3 of every layer: one tensor where all share it. Refuses copies that differ unless `local`.
std::vector<at::Tensor> read_heads(const std::vector<Parts>& layers, bool local,
                                   const std::vector<int64_t>& shape, const std::string& what) {
  constexpr std::string_view kHead = "linear3.weight";
  std::vector<at::Tensor> heads(layers.size());
  std::size_t last = layers.size();
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (!local && !layers[l].contains(kHead)) continue;
    heads[l] = read_part(layers, l, kHead, shape, what);
    if (!local && last != layers.size() && !heads[l].equal(heads[last])) {
      fail_argument(
          "{}: {} differs between the layers {} and {}; a head-row gate shares it (import "
          "it as variant local if each layer has its own)",
          what, kHead, last, l);
    }
    last = l;
  }
  if (last == layers.size()) fail_argument("{}: {} is missing", what, kHead);
  if (!local) heads.assign(layers.size(), heads[last]);
  return heads;
}

std::string text_or(const Json& record, const char* key, const std::string& chosen) {
  if (!chosen.empty()) return chosen;
  const auto at = record.find(key);
  return at != record.end() && at->is_string() ? at->get<std::string>() : std::string();
}

GateSpec spec_of(const std::vector<Parts>& layers, const Json& record,
                 const GateReadOptions& options, const std::string& what) {
  const bool two = layers[0].contains("linear2.bias") || layers[0].contains("linear3.weight");
  const StoredTensor& w1 = part_of(layers, 0, "linear1.weight", what);
  const StoredTensor& bias = part_of(layers, 0, "bias", what);
  if (w1.shape.size() != 2 || bias.shape.size() != 1) {
    fail_argument("{}: linear1.weight must have two dimensions and bias one", what);
  }
  GateSpec spec;
  spec.hidden_layers = two ? 2 : 1;
  spec.variant = text_or(record, "variant", options.variant);
  if (spec.variant.empty()) spec.variant = two ? "head-row" : "local";
  if (spec.variant != "local" && !(two && spec.variant == "head-row")) {
    fail_argument("{}: the published layout of {} hidden layers holds the variant {}, not {}", what,
                  spec.hidden_layers, two ? "head-row or local" : "local", spec.variant);
  }
  spec.width = w1.shape[0];
  spec.hidden_size = w1.shape[1];
  spec.layers = static_cast<int64_t>(layers.size());
  spec.kv_heads = bias.shape[0];
  spec.base_model = text_or(record, "base_model", options.base_model);
  spec.base_sha256 = text_or(record, "base_sha256", options.base_sha256);
  spec.training = record;
  spec.validate();
  return spec;
}

}  // namespace

GateWeights read_published_gate(const GateTensors& tensors, const Json& record,
                                const GateReadOptions& options, const std::string& what) {
  const std::vector<Parts> layers = sort_by_layer(tensors, what);
  GateWeights weights;
  weights.spec = spec_of(layers, record, options, what);
  const GateSpec& spec = weights.spec;
  const bool two = spec.hidden_layers == 2;
  const std::vector<GatePart> parts = gate_parts(spec);
  std::vector<at::Tensor> heads;
  if (two) {
    heads = read_heads(layers, spec.variant == "local", {spec.kv_heads, spec.width}, what);
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    GateLayer layer;
    for (const GatePart& part : parts) {
      const bool is_head = two && part.name == "head";
      layer.*part.tensor =
          is_head ? heads[l] : read_part(layers, l, part.parameter, part.shape, what);
    }
    const std::size_t known = (two ? 5u : 4u) + (layers[l].contains("linear3.weight") ? 1u : 0u);
    if (layers[l].size() != known) {
      fail_argument("{}: the gate of layer {} has {} tensors; expected {}", what, l,
                    layers[l].size(), known);
    }
    weights.layers.push_back(std::move(layer));
  }
  weights.validate();
  return weights;
}

}  // namespace coppice
