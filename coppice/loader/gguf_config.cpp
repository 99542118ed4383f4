// GGUF metadata to the keys of Hugging Face's config.json, and GGUF tensor names to its names.
#include <algorithm>
#include <array>
#include <cmath>

#include "coppice/core/error.h"
#include "coppice/loader/checkpoint_parts.h"

namespace coppice {
namespace {

struct Architecture {
  std::string_view gguf;        // general.architecture
  std::string_view model_type;  // config.json
  std::string_view class_name;  // config.json: architectures
  bool interleaved_qk;          // rows of q and k stand for a RoPE that rotates neighbours
};
constexpr std::array<Architecture, 3> kArchitectures = {{
    {"llama", "llama", "LlamaForCausalLM", true},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", false},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", false},
}};

const Architecture& find_architecture(const GgufFile& file) {
  const std::string_view name = file.get_string("general.architecture");
  const auto at = std::ranges::find(kArchitectures, name, &Architecture::gguf);
  if (at != kArchitectures.end()) return *at;
  std::string known;
  for (const Architecture& one : kArchitectures) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", one.gguf);
  }
  fail_argument("{}: the architecture \"{}\" is not supported; supported are {}", file.path(), name,
                known);
}

// Reads "<architecture>.<key>" entries.
class ArchKeys final {
 public:
  ArchKeys(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  // A size: an integer above zero, or a list of one such integer for every layer.
  std::optional<int64_t> size(std::string_view key) const {
    const std::string full = prefix_ + std::string(key);
    const GgufValue* value = file_.find(full);
    if (!value) return std::nullopt;
    int64_t result = 0;
    if (value->type == GgufType::kArray) {
      const std::vector<int64_t> all = *file_.find_ints(full);
      if (all.empty() || std::ranges::any_of(all, [&](int64_t one) { return one != all[0]; })) {
        fail_argument("{}: {} differs between layers, which is not supported", file_.path(), full);
      }
      result = all[0];
    } else {
      result = *file_.find_int(full);
    }
    if (result <= 0 || result > INT32_MAX) {
      fail_argument("{}: {} must be from 1 to {}, got {}", file_.path(), full, INT32_MAX, result);
    }
    return result;
  }
  int64_t required_size(std::string_view key) const {
    const auto value = size(key);
    if (!value) {
      fail_argument("{}: the metadata key {}{} is missing", file_.path(), prefix_, key);
    }
    return *value;
  }
  std::optional<double> number(std::string_view key) const {
    const auto value = file_.find_float(prefix_ + std::string(key));
    if (value && !std::isfinite(*value)) {
      fail_argument("{}: {}{} is not a finite number", file_.path(), prefix_, key);
    }
    return value;
  }
  std::optional<std::string_view> text(std::string_view key) const {
    return file_.find_string(prefix_ + std::string(key));
  }
  std::optional<int64_t> integer(std::string_view key) const {
    return file_.find_int(prefix_ + std::string(key));
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

Json rope_scaling(const ArchKeys& keys) {
  const std::string_view type = keys.text("rope.scaling.type").value_or("none");
  if (type == "none") return nullptr;
  Json result = {{"rope_type", type}, {"factor", keys.number("rope.scaling.factor").value_or(1.0)}};
  if (const auto original = keys.size("rope.scaling.original_context_length")) {
    result["original_max_position_embeddings"] = *original;
  }
  return result;
}

int64_t vocabulary_size(const GgufFile& file, const ArchKeys& keys) {
  if (const StoredTensor* embedding = file.find_tensor("token_embd.weight")) {
    if (embedding->shape.size() == 2) return embedding->shape[0];
  }
  return keys.required_size("vocab_size");
}

}  // namespace

Json config_from_gguf(const GgufFile& file) {
  const Architecture& architecture = find_architecture(file);
  const ArchKeys keys(file, architecture.gguf);
  if (keys.integer("expert_count").value_or(0) > 0) {
    fail_argument("{}: a mixture of experts on the architecture \"{}\" is not supported",
                  file.path(), architecture.gguf);
  }
  const int64_t hidden = keys.required_size("embedding_length");
  const int64_t heads = keys.required_size("attention.head_count");
  const auto key_length = keys.size("attention.key_length");
  if (!key_length && hidden % heads != 0) {
    fail_argument("{}: {} attention heads do not divide the embedding length {}", file.path(),
                  heads, hidden);
  }
  const int64_t head_dim = key_length.value_or(hidden / heads);
  if (keys.size("attention.value_length").value_or(head_dim) != head_dim) {
    fail_argument("{}: values of another width than keys are not supported", file.path());
  }
  Json config = {{"model_type", architecture.model_type},
                 {"architectures", {architecture.class_name}},
                 {"hidden_size", hidden},
                 {"num_hidden_layers", keys.required_size("block_count")},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", keys.size("attention.head_count_kv").value_or(heads)},
                 {"head_dim", head_dim},
                 {"intermediate_size", keys.required_size("feed_forward_length")},
                 {"vocab_size", vocabulary_size(file, keys)},
                 {"max_position_embeddings", keys.required_size("context_length")},
                 {"rms_norm_eps", keys.number("attention.layer_norm_rms_epsilon").value_or(1e-6)},
                 {"rope_theta", keys.number("rope.freq_base").value_or(10000.0)},
                 {"rope_scaling", rope_scaling(keys)},
                 {"hidden_act", "silu"},
                 {"attention_bias", file.find_tensor("blk.0.attn_q.bias") != nullptr},
                 {"mlp_bias", file.find_tensor("blk.0.ffn_gate.bias") != nullptr},
                 {"tie_word_embeddings", file.find_tensor("output.weight") == nullptr}};
  const int64_t rotary = keys.size("rope.dimension_count").value_or(head_dim);
  if (rotary != head_dim) {
    config["partial_rotary_factor"] = static_cast<double>(rotary) / static_cast<double>(head_dim);
  }
  if (const auto window = keys.integer("attention.sliding_window"); window && *window > 0) {
    config["sliding_window"] = *window;
    config["use_sliding_window"] = true;
  }
  const GenerationDefaults generation = generation_from_gguf(file);
  config["eos_token_id"] = generation.eos_token_ids;
  if (generation.bos_token_id) config["bos_token_id"] = *generation.bos_token_id;
  return config;
}

std::string checkpoint_name(std::string_view gguf_name) {
  using Pair = std::pair<std::string_view, std::string_view>;
  static constexpr std::array<Pair, 3> kTop = {{{"token_embd.weight", "model.embed_tokens.weight"},
                                                {"output_norm.weight", "model.norm.weight"},
                                                {"output.weight", "lm_head.weight"}}};
  static constexpr std::array<Pair, 11> kLayer = {{{"attn_norm", "input_layernorm"},
                                                   {"attn_q", "self_attn.q_proj"},
                                                   {"attn_k", "self_attn.k_proj"},
                                                   {"attn_v", "self_attn.v_proj"},
                                                   {"attn_output", "self_attn.o_proj"},
                                                   {"attn_q_norm", "self_attn.q_norm"},
                                                   {"attn_k_norm", "self_attn.k_norm"},
                                                   {"ffn_norm", "post_attention_layernorm"},
                                                   {"ffn_gate", "mlp.gate_proj"},
                                                   {"ffn_up", "mlp.up_proj"},
                                                   {"ffn_down", "mlp.down_proj"}}};
  for (const auto& [from, to] : kTop) {
    if (gguf_name == from) return std::string(to);
  }
  std::string_view rest = gguf_name;
  if (!rest.starts_with("blk.")) return std::string(gguf_name);
  rest.remove_prefix(4);
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  const std::string_view layer = rest.substr(0, digits);
  rest.remove_prefix(digits);
  const std::size_t dot = rest.rfind('.');
  if (layer.empty() || !rest.starts_with('.') || dot == 0) return std::string(gguf_name);
  const std::string_view part = rest.substr(1, dot - 1);
  for (const auto& [from, to] : kLayer) {
    if (part == from) return fmt::format("model.layers.{}.{}{}", layer, to, rest.substr(dot));
  }
  return std::string(gguf_name);
}

GenerationDefaults generation_from_gguf(const GgufFile& file) {
  GenerationDefaults result;
  const auto id = [&](std::string_view key) {
    return file.find_int("tokenizer.ggml." + std::string(key));
  };
  const auto add_eos = [&](int64_t token) {
    if (std::ranges::find(result.eos_token_ids, token) == result.eos_token_ids.end()) {
      result.eos_token_ids.push_back(token);
    }
  };
  for (const std::string_view key : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    if (const auto token = id(key)) add_eos(*token);
  }
  static constexpr std::array<std::string_view, 7> kEndTexts = {
      "<|im_end|>",      "<|eot_id|>", "<|eom_id|>",   "<|endoftext|>",
      "<|end_of_text|>", "<|end|>",    "<end_of_turn>"};
  constexpr int64_t kControl = 3;
  const auto texts = file.find_strings("tokenizer.ggml.tokens");
  const auto types = file.find_ints("tokenizer.ggml.token_type");
  if (texts && types) {
    for (std::size_t i = 0; i < std::min(texts->size(), types->size()); ++i) {
      if ((*types)[i] == kControl && std::ranges::find(kEndTexts, (*texts)[i]) != kEndTexts.end()) {
        add_eos(static_cast<int64_t>(i));
      }
    }
  }
  result.bos_token_id = id("bos_token_id");
  result.pad_token_id = id("padding_token_id");
  result.add_bos_token = file.find_bool("tokenizer.ggml.add_bos_token");
  result.add_eos_token = file.find_bool("tokenizer.ggml.add_eos_token");
  return result;
}

CheckpointParts read_gguf_checkpoint(const std::string& path) {
  CheckpointParts parts;
  parts.path = path;
  parts.gguf = GgufFile::open(path);
  const GgufFile& file = *parts.gguf;
  parts.format = fmt::format("GGUF v{}", file.version());
  parts.config = config_from_gguf(file);
  parts.model_name = file.find_string("general.name").value_or("");
  parts.generation = generation_from_gguf(file);

  constexpr std::string_view kTemplate = "tokenizer.chat_template";
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(kTemplate) || value.type != GgufType::kString) continue;
    const std::string_view name = key.substr(kTemplate.size());
    if (!name.empty() && !name.starts_with('.')) continue;
    parts.chat_templates.emplace(name.empty() ? "default" : name.substr(1), *file.find_string(key));
  }

  const bool interleaved = find_architecture(file).interleaved_qk;
  for (const StoredTensor& stored : file.tensors()) {
    CheckpointTensor tensor;
    tensor.stored = stored;
    tensor.stored.name = checkpoint_name(stored.name);
    const std::string& name = tensor.stored.name;
    tensor.info = {name, std::string(storage_traits(stored.type).name), stored.shape,
                   static_cast<int64_t>(stored.bytes.size())};
    const bool query = name.find(".self_attn.q_proj.") != std::string::npos;
    const bool key = name.find(".self_attn.k_proj.") != std::string::npos;
    if (interleaved && (query || key)) {
      tensor.interleaved_heads =
          parts.config[query ? "num_attention_heads" : "num_key_value_heads"].get<int64_t>();
    }
    if (!parts.tensors.emplace(name, std::move(tensor)).second) {
      fail_argument("{}: two tensors stand for {}", path, name);
    }
  }
  return parts;
}

}  // namespace coppice
