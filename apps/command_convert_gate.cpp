// `coppice convert-gate`: a published gate checkpoint into our safetensors form.

#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "coppice/core/error.h"
#include "coppice/loader/gate_checkpoint.h"

namespace coppice {

void add_convert_gate_command(CLI::App& program) {
  struct Options {
    std::string source, target, dtype = "bf16";
    GateReadOptions read;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("convert-gate", "write a published gate in the form of gates/");
  command
      ->add_option("source", options->source,
                   "trimkv_weights.pth, its folder, or a safetensors gate")
      ->required();
  command->add_option("target", options->target, "safetensors file to write")->required();
  command->add_option("--dtype", options->dtype)
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  command->add_option("--variant", options->read.variant, "what the published layout does not tell")
      ->check(CLI::IsMember({"head-row", "local"}));
  command->add_option("--base-model", options->read.base_model,
                      "name of the model it was trained for");
  command->add_option("--base-sha256", options->read.base_sha256,
                      "hash of that model's weights file");
  command->callback([options] {
    const StorageType dtype = options->dtype == "bf16" ? StorageType::kBF16 : StorageType::kF32;
    const GateSpec spec = import_gate(options->source, options->target, options->read, dtype);
    std::cout << fmt::format("{}: {} gate, {} layers x {} KV heads, width {}\n", options->target,
                             spec.variant, spec.layers, spec.kv_heads, spec.width);
  });
}

}  // namespace coppice
