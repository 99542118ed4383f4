#include "coppice/models/registry.h"

#include "coppice/core/error.h"
#include "coppice/models/architectures.h"

namespace coppice {
namespace {

struct Architecture {
  const char* model_type;
  std::shared_ptr<Model> (*make)(const ModelArgs& args);
  bool three_part_positions = false;
};

// A new architecture is one line here, one file, and one row of the parity test.
constexpr Architecture kArchitectures[] = {
    {"llama", models::make_llama},
    {"qwen2", models::make_qwen2},
    {"qwen3", models::make_qwen3},
    {"qwen3_vl_text", models::make_qwen3_vl_text, true},
};

const Architecture* find(const std::string& model_type) {
  for (const Architecture& architecture : kArchitectures)
    if (model_type == architecture.model_type) return &architecture;
  return nullptr;
}

}  // namespace

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Architecture& architecture : kArchitectures)
    names.emplace_back(architecture.model_type);
  return names;
}

void check_supported(const std::string& model_type) {
  if (find(model_type) == nullptr)
    fail_argument("the architecture \"{}\" is not supported; supported are: {}", model_type,
                  fmt::join(supported_architectures(), ", "));
}

bool has_three_part_positions(const std::string& model_type) {
  check_supported(model_type);
  return find(model_type)->three_part_positions;
}

std::shared_ptr<Model> make_model(const ModelArgs& args) {
  check_supported(args.model_type);
  return find(args.model_type)->make(args);
}

}  // namespace coppice
