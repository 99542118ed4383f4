// `coppice inspect`: what is in a model or a gate file.

#include <filesystem>
#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "apps/report.h"
#include "apps/runtime.h"
#include "coppice/core/error.h"

namespace coppice {
namespace {

struct InspectOptions {
  std::string path;
  bool json = false;
  bool tensors = false;
};

void print_fields(const Json& value, int indent) {
  for (const auto& [key, field] : value.items()) {
    std::cout << std::string(static_cast<std::size_t>(indent), ' ') << key << ": ";
    if (field.is_object()) {
      std::cout << "\n";
      print_fields(field, indent + 2);
    } else {
      std::cout << (field.is_string() ? field.get<std::string>() : dump_json(field)) << "\n";
    }
  }
}

Json describe_model(const Checkpoint& checkpoint, bool tensors) {
  Json result = checkpoint.description();
  result["sha256"] = checkpoint.sha256();
  const ModelArgs args = ModelArgs::from_config(checkpoint.config());
  const CacheConfig cache = cache_config(args, at::kHalf, c10::Device(c10::kCPU));
  result["kv_bytes_per_token"] = cache.num_rows() * cache.entry_bytes();
  if (tensors) {
    Json list = Json::array();
    for (const TensorInfo& info : checkpoint.tensor_infos()) {
      list.push_back(
          {{"name", info.name}, {"type", info.type}, {"shape", info.shape}, {"bytes", info.bytes}});
    }
    result["tensors"] = std::move(list);
  }
  return result;
}

Json describe_gate(const GateSpec& spec) {
  return {{"kind", spec.kind + " gate"},
          {"variant", spec.variant},
          {"hidden_layers", spec.hidden_layers},
          {"width", spec.width},
          {"layers", spec.layers},
          {"kv_heads", spec.kv_heads},
          {"hidden_size", spec.hidden_size},
          {"base_model", spec.base_model},
          {"base_sha256", spec.base_sha256},
          {"training", spec.training}};
}

bool is_gate_file(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  return extension == ".pth" || extension == ".safetensors";
}

void inspect(const InspectOptions& options) {
  const std::string path = model_path(options.path);
  const Json description = is_gate_file(path)
                               ? describe_gate(load_gate(path).spec)
                               : describe_model(Checkpoint::open(path), options.tensors);
  if (options.json) {
    std::cout << dump_json(description) << "\n";
  } else {
    print_fields(description, 0);
  }
}

}  // namespace

void add_inspect_command(CLI::App& program) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = program.add_subcommand("inspect", "what is in a model or gate file");
  command
      ->add_option("file", options->path, "GGUF file, Hugging Face folder, gate file, or smollm2")
      ->required();
  command->add_flag("--tensors", options->tensors, "list every tensor of a model");
  command->add_flag("--json", options->json, "print one JSON object on stdout");
  command->callback([options] { inspect(*options); });
}

}  // namespace coppice
