#include "coppice/loader/vision_names.h"

#include <utility>

#include "coppice/core/error.h"

namespace coppice {
namespace {

// What a config.json of the family leaves out when it is the default.
const Json& llama_defaults() {
  static const Json values = {{"hidden_size", 4096},     {"intermediate_size", 11008},
                              {"num_hidden_layers", 32}, {"num_attention_heads", 32},
                              {"vocab_size", 32000},     {"max_position_embeddings", 2048},
                              {"rms_norm_eps", 1e-6},    {"hidden_act", "silu"}};
  return values;
}

const Json& qwen3_vl_defaults() {
  static const Json values = {{"vocab_size", 151936},
                              {"hidden_size", 4096},
                              {"intermediate_size", 22016},
                              {"num_hidden_layers", 32},
                              {"num_attention_heads", 32},
                              {"num_key_value_heads", 32},
                              {"head_dim", 128},
                              {"max_position_embeddings", 128000},
                              {"rope_theta", 500000.0}};
  return values;
}

// Layers of the vision side whose features are added behind the text model's first layers.
int64_t deepstack_layers(const Json& config) {
  const Json vision = config.value("vision_config", Json());
  if (!vision.is_object() || !vision.contains("deepstack_visual_indexes")) return 3;
  const Json& layers = vision["deepstack_visual_indexes"];
  if (!layers.is_array())
    fail_argument("vision_config: \"deepstack_visual_indexes\" must be a list, got {}",
                  dump_json(layers).substr(0, 40));
  return static_cast<int64_t>(layers.size());
}

bool take_prefix(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  return true;
}

}  // namespace

bool is_vision_language(const Json& config) {
  if (!config.is_object()) return false;
  const Json type = config.value("model_type", Json());
  return type == "llava" || type == "qwen3_vl";
}

Json text_config_of(const Json& config) {
  const Json text = config.value("text_config", Json());
  if (!text.is_object())
    fail_argument("config.json: expected \"text_config\" to be an object, got {}",
                  dump_json(text).substr(0, 40));
  Json result = text;
  const bool llava = config.value("model_type", Json()) == "llava";
  if (llava && text.value("model_type", Json("llama")) == "llama") {
    result = llama_defaults();
    result.update(text);
    result["model_type"] = "llama";
  }
  if (config.value("model_type", Json()) == "qwen3_vl") {
    result = qwen3_vl_defaults();
    result.update(text);
    result["model_type"] = "qwen3_vl_text";
    if (const int64_t layers = deepstack_layers(config); layers > 0)
      result["deepstack_layers"] = layers;
  }
  // Written beside text_config by some, inside it by others.
  for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings",
                          "quantization_config"})
    if ((!result.contains(key) || result[key].is_null()) && config.contains(key))
      result[key] = config[key];
  return result;
}

std::string unified_name(std::string_view name) {
  std::string_view rest = name;
  if (take_prefix(rest, "language_model.lm_head.")) return "lm_head." + std::string(rest);
  if (take_prefix(rest, "language_model.model.")) return "model." + std::string(rest);
  if (take_prefix(rest, "model.language_model.")) return "model." + std::string(rest);
  for (const std::string_view root : {"model.", ""}) {
    rest = name;
    if (take_prefix(rest, root) && rest.starts_with("visual.")) return std::string(rest);
    for (const std::string_view part :
         {"vision_tower.vision_model.", "vision_tower.", "multi_modal_projector."}) {
      rest = name;
      if (!take_prefix(rest, root) || !take_prefix(rest, part)) continue;
      const bool tower = part.starts_with("vision_tower.");
      return (tower ? "vision_tower." : "multi_modal_projector.") + std::string(rest);
    }
  }
  return std::string(name);
}

bool is_vision_tensor(std::string_view name) {
  return name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.") ||
         name.starts_with("visual.");
}

}  // namespace coppice
