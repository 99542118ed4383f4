#include "coppice/loader/gate_checkpoint.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/loader/gate_format.h"
#include "coppice/loader/gate_parts.h"
#include "coppice/loader/safetensors_file.h"
#include "coppice/loader/torch_archive.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void check_tensor(const at::Tensor& tensor, const std::vector<int64_t>& shape,
                  std::string_view name, std::size_t layer) {
  if (!tensor.defined() || tensor.sizes() != at::IntArrayRef(shape) ||
      tensor.scalar_type() != at::kFloat || !tensor.device().is_cpu()) {
    fail_argument("gate: {} of layer {} must be float32 [{}] on the CPU, got {}", name, layer,
                  fmt::join(shape, ", "),
                  tensor.defined() ? fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")) : "none");
  }
  const at::Tensor flat = tensor.contiguous();
  const std::span<const float> values(flat.const_data_ptr<float>(),
                                      static_cast<std::size_t>(flat.numel()));
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
    fail_argument("gate: {} of layer {} holds a value that is not finite", name, layer);
  }
}

// A folder's gate file, or `path` itself.
std::string gate_file(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  for (const char* name :
       {"gate.safetensors", "trimkv_weights.safetensors", "trimkv_weights.pth"}) {
    if (is_there(fs::path(path) / name)) return fs::path(path) / name;
  }
  fail(ErrorCode::kNotFound, "{}: holds neither gate.safetensors nor trimkv_weights.pth", path);
}

GateWeights load_safetensors_gate(const SafetensorsFile& file, const GateReadOptions& options) {
  GateTensors tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    tensors.emplace(entry.name, file.weight(entry));
  }
  if (tensors.empty()) fail_argument("{}: holds no tensors, so no gate", file.path());
  const auto format = file.metadata().find("format");
  if (format != file.metadata().end() && format->second == "coppice-gate") {
    return read_own_gate(tensors, file.metadata(), file.path());
  }
  Json record = Json::object();
  for (const auto& [key, value] : file.metadata()) record[key] = value;
  return read_published_gate(tensors, record, options, file.path());
}

GateWeights load_torch_gate(const MappedFile& file, const GateReadOptions& options) {
  GateTensors tensors;
  for (StoredTensor& tensor : read_torch_archive(file.bytes(), file.owner(), file.path())) {
    std::string name = tensor.name;
    tensors.emplace(std::move(name), std::move(tensor));
  }
  if (tensors.empty()) fail_argument("{}: holds no tensors, so no gate", file.path());
  const fs::path config = fs::path(file.path()).parent_path() / "config.json";
  Json record = Json::object();
  if (is_there(config)) record = parse_json(read_text_file(config), config.string());
  if (!record.is_object()) fail_argument("{}: expected a JSON object", config.string());
  return read_published_gate(tensors, record, options, file.path());
}

}  // namespace

void GateWeights::validate() const {
  spec.validate();
  if (static_cast<int64_t>(layers.size()) != spec.layers) {
    fail_argument("gate: {} layers of weights for {} layers", layers.size(), spec.layers);
  }
  const std::vector<GatePart> parts = gate_parts(spec);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (const GatePart& part : parts) {
      const at::Tensor& here = layers[l].*part.tensor;
      check_tensor(here, part.shape, part.name, l);
      if (!part.shared) continue;
      const at::Tensor& first = layers[0].*part.tensor;
      if (!here.is_same(first) && !here.equal(first)) {
        fail_argument("gate: {} of layer {} differs from layer 0, but the variant {} shares it",
                      part.name, l, spec.variant);
      }
    }
  }
}

GateWeights load_gate(const std::string& path, const GateReadOptions& options) {
  const MappedFile file = MappedFile::open(gate_file(path));
  if (file.bytes().empty()) fail_argument("{}: an empty file is no gate", file.path());
  const bool zip = file.bytes().size() >= 2 && file.bytes()[0] == std::byte{'P'} &&
                   file.bytes()[1] == std::byte{'K'};
  return zip ? load_torch_gate(file, options)
             : load_safetensors_gate(
                   SafetensorsFile::parse(file.bytes(), file.owner(), file.path()), options);
}

GateSpec read_gate_spec(const std::string& path) { return load_gate(path).spec; }

void check_gate(const GateSpec& spec, const GateBase& base, bool allow_other_base) {
  const auto compare = [](const char* what, int64_t gate, int64_t model) {
    if (gate != model) {
      fail_argument("the gate does not fit the model: it has {} {}, the model {}", gate, what,
                    model);
    }
  };
  compare("layers", spec.layers, base.layers);
  compare("KV heads", spec.kv_heads, base.kv_heads);
  compare("as hidden size", spec.hidden_size, base.hidden_size);
  if (allow_other_base || spec.base_sha256.empty() || base.sha256.empty()) return;
  if (spec.base_sha256 != base.sha256) {
    fail_argument(
        "the gate was trained for other weights: {} (sha256 {}), but the model's are {}; allow "
        "another base explicitly if they are the same model in another form",
        spec.base_model.empty() ? "a model without a name" : spec.base_model, spec.base_sha256,
        base.sha256);
  }
}

GateSpec import_gate(const std::string& source, const std::string& target,
                     const GateReadOptions& options, StorageType dtype) {
  const GateWeights weights = load_gate(source, options);
  save_gate(target, weights, dtype);
  return weights.spec;
}

}  // namespace coppice
