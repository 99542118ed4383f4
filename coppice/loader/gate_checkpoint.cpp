#include "coppice/loader/gate_checkpoint.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/loader/gate_format.h"
#include "coppice/loader/safetensors_file.h"
#include "coppice/loader/torch_archive.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxSize = int64_t{1} << 24;  // of every size of a gate

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

void GateSpec::validate() const {
  if (variant != "shared" && variant != "head-row" && variant != "local") {
    fail_argument("gate: the variant \"{}\" is unknown; expected shared, head-row or local",
                  variant);
  }
  if (hidden_layers != 1 && hidden_layers != 2) {
    fail_argument("gate: hidden_layers must be 1 or 2, got {}", hidden_layers);
  }
  const auto check = [](const char* name, int64_t value) {
    if (value < 1 || value > kMaxSize) {
      fail_argument("gate: {} must be from 1 to {}, got {}", name, kMaxSize, value);
    }
  };
  check("width", width);
  check("layers", layers);
  check("kv_heads", kv_heads);
  check("hidden_size", hidden_size);
}

GateShapes gate_shapes(const GateSpec& spec) {
  const bool shared = spec.variant == "shared";
  const int64_t g = spec.width;
  const int64_t last = shared ? spec.kv_heads * g : g;  // outputs of the last hidden layer
  GateShapes shapes;
  const bool two = spec.hidden_layers == 2;
  shapes.w1 = {two ? g : last, spec.hidden_size};
  shapes.c1 = {two ? g : last};
  if (two) {
    shapes.w2 = {last, g};
    shapes.c2 = {last};
  }
  shapes.head = shared ? std::vector<int64_t>{g} : std::vector<int64_t>{spec.kv_heads, g};
  shapes.bias = {shared ? 1 : spec.kv_heads};
  shapes.head_shared = spec.variant != "local";
  shapes.bias_shared = shared;
  return shapes;
}

void GateWeights::validate() const {
  spec.validate();
  if (static_cast<int64_t>(layers.size()) != spec.layers) {
    fail_argument("gate: {} layers of weights for {} layers", layers.size(), spec.layers);
  }
  const GateShapes shapes = gate_shapes(spec);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const GateLayer& layer = layers[l];
    check_tensor(layer.w1, shapes.w1, "w1", l);
    check_tensor(layer.c1, shapes.c1, "c1", l);
    if (spec.hidden_layers == 2) {
      check_tensor(layer.w2, shapes.w2, "w2", l);
      check_tensor(layer.c2, shapes.c2, "c2", l);
    }
    check_tensor(layer.head, shapes.head, "head", l);
    check_tensor(layer.bias, shapes.bias, "bias", l);
    const auto same = [](const at::Tensor& a, const at::Tensor& b) {
      return a.is_same(b) || a.equal(b);
    };
    const bool same_head = !shapes.head_shared || same(layer.head, layers[0].head);
    const bool same_bias = !shapes.bias_shared || same(layer.bias, layers[0].bias);
    if (!same_head || !same_bias) {
      fail_argument("gate: {} of layer {} differs from layer 0, but the variant {} shares it",
                    same_head ? "bias" : "head", l, spec.variant);
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
