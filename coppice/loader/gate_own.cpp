// Our gate format, read and written; gate_checkpoint.h draws it.
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <charconv>

#include "coppice/core/error.h"
#include "coppice/loader/gate_format.h"
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
  if (text_of(metadata, "format_version", what) != "1") {
    fail_argument("{}: gate format version {} is not supported; expected 1", what,
                  metadata.at("format_version"));
  }
  GateSpec spec;
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

// Calls visit(name, layer member, shape) for every tensor of one layer; a shared one under the name
// without a layer.
template <typename Layer, typename Visit>
void for_each_tensor(const GateSpec& spec, const GateShapes& shapes, int64_t index, Layer& layer,
                     const Visit& visit) {
  const std::string prefix = fmt::format("layers.{}.", index);
  visit(prefix + "w1", layer.w1, shapes.w1);
  visit(prefix + "c1", layer.c1, shapes.c1);
  if (spec.hidden_layers == 2) {
    visit(prefix + "w2", layer.w2, shapes.w2);
    visit(prefix + "c2", layer.c2, shapes.c2);
  }
  visit((shapes.head_shared ? "" : prefix) + "head", layer.head, shapes.head);
  visit((shapes.bias_shared ? "" : prefix) + "bias", layer.bias, shapes.bias);
}

}  // namespace

GateWeights read_own_gate(const GateTensors& tensors, const Metadata& metadata,
                          const std::string& what) {
  GateWeights weights;
  weights.spec = read_spec(metadata, what);
  const GateShapes shapes = gate_shapes(weights.spec);
  std::map<std::string, at::Tensor> read;  // so that what is shared is read once
  for (int64_t l = 0; l < weights.spec.layers; ++l) {
    GateLayer layer;
    for_each_tensor(
        weights.spec, shapes, l, layer,
        [&](const std::string& name, at::Tensor& to, const std::vector<int64_t>& shape) {
          const auto at = tensors.find(name);
          if (at == tensors.end()) {
            fail_argument("{}: the gate's tensor {} is missing", what, name);
          }
          if (at->second.shape != shape) {
            fail_argument("{}: the gate's tensor {} has the shape [{}]; expected [{}]", what, name,
                          fmt::join(at->second.shape, ", "), fmt::join(shape, ", "));
          }
          at::Tensor& once = read[name];
          if (!once.defined()) once = ops::dequantize(at->second);
          to = once;
        });
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
  const GateShapes shapes = gate_shapes(spec);
  std::map<std::string, at::Tensor> tensors;
  for (int64_t l = 0; l < spec.layers; ++l) {
    for_each_tensor(
        spec, shapes, l, weights.layers[static_cast<std::size_t>(l)],
        [&](const std::string& name, const at::Tensor& from, const std::vector<int64_t>&) {
          if (tensors.contains(name)) return;
          const bool is_bias =
              name.ends_with("c1") || name.ends_with("c2") || name.ends_with("bias");
          const bool round = dtype == StorageType::kBF16 && !is_bias;
          tensors[name] = from.to(round ? at::kBFloat16 : at::kFloat).contiguous();
        });
  }
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name,
                       tensor.scalar_type() == at::kFloat ? "F32" : "BF16",
                       tensor.sizes().vec(),
                       {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
  }
  write_safetensors(path, std::move(entries),
                    {{"format", "coppice-gate"},
                     {"format_version", "1"},
                     {"variant", spec.variant},
                     {"hidden_layers", std::to_string(spec.hidden_layers)},
                     {"width", std::to_string(spec.width)},
                     {"layers", std::to_string(spec.layers)},
                     {"kv_heads", std::to_string(spec.kv_heads)},
                     {"hidden_size", std::to_string(spec.hidden_size)},
                     {"base_model", spec.base_model},
                     {"base_sha256", spec.base_sha256},
                     {"training", dump_json(spec.training)}});
}

}  // namespace coppice
