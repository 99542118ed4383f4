// Our gate format, read and written; gate_checkpoint.h draws it.
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <charconv>

#include "coppice/core/error.h"
#include "coppice/loader/gate_format.h"
#include "coppice/loader/gate_parts.h"
#include "coppice/loader/safetensors_file.h"
#include "coppice/ops/dequantize.h"

namespace coppice {
namespace {

using Metadata = std::map<std::string, std::string>;

const std::string& text_of(const Metadata& metadata, const char* key, const std::string& what) {
  const auto at = metadata.find(key);
  if (at == metadata.end()) fail_argument("{}: the gate's metadata lacks \"{}\"", what, key);
  return at->second;
}

int64_t number_of(const Metadata& metadata, const char* key, const std::string& what) {
  const std::string& text = text_of(metadata, key, what);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail_argument("{}: the gate's \"{}\" must be an integer, got \"{}\"", what, key, text);
  }
  return value;
}

GateSpec read_spec(const Metadata& metadata, const std::string& what) {
  const std::string& version = text_of(metadata, "format_version", what);
  if (version != "1" && version != "2") {
    fail_argument("{}: gate format version {} is not supported; expected 1 or 2", what, version);
  }
  GateSpec spec;
  if (version == "2") {
    spec.kind = text_of(metadata, "kind", what);
    spec.sinks = number_of(metadata, "sinks", what);
    spec.query_heads = number_of(metadata, "query_heads", what);
  }
  spec.variant = text_of(metadata, "variant", what);
  spec.hidden_layers = number_of(metadata, "hidden_layers", what);
  spec.width = number_of(metadata, "width", what);
  spec.layers = number_of(metadata, "layers", what);
  spec.kv_heads = number_of(metadata, "kv_heads", what);
  spec.hidden_size = number_of(metadata, "hidden_size", what);
  spec.base_model = text_of(metadata, "base_model", what);
  spec.base_sha256 = text_of(metadata, "base_sha256", what);
  spec.training = parse_json(text_of(metadata, "training", what), what + ": the training record");
  spec.validate();
  return spec;
}

std::string name_in_file(const GatePart& part, int64_t layer) {
  return part.shared ? part.name : fmt::format("layers.{}.{}", layer, part.name);
}

}  // namespace

GateWeights read_own_gate(const GateTensors& tensors, const Metadata& metadata,
                          const std::string& what) {
  GateWeights weights;
  weights.spec = read_spec(metadata, what);
  const std::vector<GatePart> parts = gate_parts(weights.spec);
  std::map<std::string, at::Tensor> read;  // so that what is shared is read once
  for (int64_t l = 0; l < weights.spec.layers; ++l) {
    GateLayer layer;
    for (const GatePart& part : parts) {
      const std::string name = name_in_file(part, l);
      const auto at = tensors.find(name);
      if (at == tensors.end()) {
        fail_argument("{}: the gate's tensor {} is missing", what, name);
      }
      if (at->second.shape != part.shape) {
        fail_argument("{}: the gate's tensor {} has the shape [{}]; expected [{}]", what, name,
                      fmt::join(at->second.shape, ", "), fmt::join(part.shape, ", "));
      }
      at::Tensor& once = read[name];
      if (!once.defined()) once = ops::dequantize(at->second);
      layer.*part.tensor = once;
    }
    weights.layers.push_back(std::move(layer));
  }
  for (const auto& [name, tensor] : tensors) {
    if (!read.contains(name)) fail_argument("{}: {} is no tensor of this gate", what, name);
  }
  weights.validate();
  return weights;
}

void save_gate(const std::string& path, const GateWeights& weights, StorageType dtype) {
  if (dtype != StorageType::kBF16 && dtype != StorageType::kF32) {
    fail_argument("a gate is stored as BF16 or F32, not {}", storage_traits(dtype).name);
  }
  weights.validate();
  const GateSpec& spec = weights.spec;
  const std::vector<GatePart> parts = gate_parts(spec);
  std::map<std::string, at::Tensor> tensors;
  for (int64_t l = 0; l < spec.layers; ++l) {
    for (const GatePart& part : parts) {
      at::Tensor& to = tensors[name_in_file(part, l)];
      if (to.defined()) continue;
      const at::Tensor& from = weights.layers[static_cast<std::size_t>(l)].*part.tensor;
      const bool round = dtype == StorageType::kBF16 && part.matrix;
      to = from.to(round ? at::kBFloat16 : at::kFloat).contiguous();
    }
  }
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name,
                       tensor.scalar_type() == at::kFloat ? "F32" : "BF16",
                       tensor.sizes().vec(),
                       {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
  }
  std::map<std::string, std::string> metadata = {
      {"format", "coppice-gate"},
      {"format_version", "1"},
      {"variant", spec.variant},
      {"hidden_layers", std::to_string(spec.hidden_layers)},
      {"width", std::to_string(spec.width)},
      {"layers", std::to_string(spec.layers)},
      {"kv_heads", std::to_string(spec.kv_heads)},
      {"hidden_size", std::to_string(spec.hidden_size)},
      {"base_model", spec.base_model},
      {"base_sha256", spec.base_sha256},
      {"training", dump_json(spec.training)}};
  if (spec.kind != "retention") {
    metadata["format_version"] = "2";  // readers of version 1 would take it for another gate
    metadata["kind"] = spec.kind;
    metadata["sinks"] = std::to_string(spec.sinks);
    metadata["query_heads"] = std::to_string(spec.query_heads);
  }
  write_safetensors(path, std::move(entries), metadata);
}

}  // namespace coppice
