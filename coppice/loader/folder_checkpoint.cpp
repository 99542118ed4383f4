// A Hugging Face folder: config.json, safetensors weights, and what generation needs.
#include <algorithm>
#include <filesystem>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/loader/checkpoint_parts.h"
#include "coppice/loader/vision_names.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Json read_object(const fs::path& path) {
  Json value = parse_json(read_text_file(path), path.string());
  if (!value.is_object()) fail_argument("{}: expected a JSON object", path.string());
  return value;
}

Json read_object_if_there(const fs::path& path) {
  return is_there(path) ? read_object(path) : Json::object();
}

// tokenizer_config.json writes a special token as its text or as an object with its text.
std::optional<std::string> token_text(const Json& config, const char* key) {
  const auto at = config.find(key);
  if (at == config.end()) return std::nullopt;
  if (at->is_string()) return at->get<std::string>();
  if (at->is_object() && at->contains("content") && (*at)["content"].is_string()) {
    return (*at)["content"].get<std::string>();
  }
  return std::nullopt;
}

// The id of a special token: from added_tokens_decoder of tokenizer_config.json, else from
// tokenizer.json, which is large and so read only when needed.
std::optional<int64_t> token_id(const Json& config, const fs::path& folder,
                                const std::string& text) {
  const auto decoder = config.find("added_tokens_decoder");
  if (decoder != config.end() && decoder->is_object()) {
    for (const auto& [id, token] : decoder->items()) {
      const bool number = !id.empty() && id.size() < 10 &&
                          std::ranges::all_of(id, [](char c) { return c >= '0' && c <= '9'; });
      if (number && token.is_object() && token.value("content", Json()) == text) {
        return std::stoll(id);
      }
    }
  }
  const Json tokenizer = read_object_if_there(folder / "tokenizer.json");
  const auto added = tokenizer.find("added_tokens");
  if (added != tokenizer.end() && added->is_array()) {
    for (const Json& token : *added) {
      if (!token.is_object() || token.value("content", Json()) != text) continue;
      const Json id = token.value("id", Json());
      if (id.is_number_unsigned()) return id.get<int64_t>();
    }
  }
  return std::nullopt;
}

std::optional<bool> flag(const Json& config, const char* key) {
  const auto at = config.find(key);
  if (at == config.end() || !at->is_boolean()) return std::nullopt;
  return at->get<bool>();
}

std::optional<int64_t> single_id(const Json& config, const char* key, std::string_view what) {
  std::vector<int64_t> ids;
  add_token_ids(config.value(key, Json()), what, ids);
  if (ids.empty()) return std::nullopt;
  return ids[0];
}

GenerationDefaults read_generation(const Json& config, const Json& tokenizer,
                                   const fs::path& folder) {
  const Json file = read_object_if_there(folder / "generation_config.json");
  GenerationDefaults result;
  result.sampling = file;
  add_token_ids(file.value("eos_token_id", Json()), "generation_config.json: eos_token_id",
                result.eos_token_ids);
  add_token_ids(config.value("eos_token_id", Json()), "config.json: eos_token_id",
                result.eos_token_ids);
  if (const auto text = token_text(tokenizer, "eos_token")) {
    if (const auto id = token_id(tokenizer, folder, *text)) {
      add_token_ids(*id, "tokenizer_config.json: eos_token", result.eos_token_ids);
    }
  }
  result.bos_token_id = single_id(file, "bos_token_id", "generation_config.json: bos_token_id");
  if (!result.bos_token_id) {
    result.bos_token_id = single_id(config, "bos_token_id", "config.json: bos_token_id");
  }
  result.pad_token_id = single_id(file, "pad_token_id", "generation_config.json: pad_token_id");
  result.add_bos_token = flag(tokenizer, "add_bos_token");
  result.add_eos_token = flag(tokenizer, "add_eos_token");
  return result;
}

std::map<std::string, std::string> read_templates(const Json& tokenizer, const fs::path& folder) {
  std::map<std::string, std::string> result;
  const auto add_value = [&](const Json& value) {
    if (value.is_string()) result["default"] = value.get<std::string>();
    if (!value.is_array()) return;
    for (const Json& one : value) {
      if (!one.is_object()) continue;
      const Json name = one.value("name", Json()), text = one.value("template", Json());
      if (name.is_string() && text.is_string()) {
        result[name.get<std::string>()] = text.get<std::string>();
      }
    }
  };
  add_value(tokenizer.value("chat_template", Json()));
  add_value(read_object_if_there(folder / "chat_template.json").value("chat_template", Json()));
  if (is_there(folder / "chat_template.jinja")) {
    result["default"] = read_text_file(folder / "chat_template.jinja");
  }
  std::error_code error;
  fs::directory_iterator item(folder / "additional_chat_templates", error);
  for (; !error && item != fs::directory_iterator(); item.increment(error)) {
    const fs::path& file = item->path();
    if (file.extension() == ".jinja") result[file.stem().string()] = read_text_file(file);
  }
  return result;
}

// Newer folders hold it in processor_config.json, which then counts; older ones have a file of its
// own.
Json read_image_processor(const fs::path& folder) {
  const Json all = read_object_if_there(folder / "processor_config.json");
  if (all.contains("image_processor")) return all["image_processor"];
  if (!is_there(folder / "preprocessor_config.json")) return {};
  return read_object(folder / "preprocessor_config.json");
}

}  // namespace

void add_token_ids(const Json& value, std::string_view what, std::vector<int64_t>& ids) {
  if (value.is_null()) return;
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      fail_argument("{} must be a token id or a list of them, got {}", what, dump_json(value));
    }
    if (std::ranges::find(ids, id.get<int64_t>()) == ids.end()) ids.push_back(id.get<int64_t>());
  }
}

CheckpointParts read_folder_checkpoint(const std::string& path) {
  const fs::path folder(path);
  if (!is_there(folder / "config.json")) {
    fail(ErrorCode::kNotFound, "{}: has no config.json; expected a Hugging Face model folder",
         path);
  }
  CheckpointParts parts;
  parts.path = path;
  parts.format = "safetensors";
  parts.config = read_object(folder / "config.json");
  const bool has_vision = is_vision_language(parts.config);
  if (has_vision) {
    parts.vision_config = std::move(parts.config);
    parts.config = text_config_of(parts.vision_config);
    parts.image_processor = read_image_processor(folder);
  }
  const Json name = parts.config.value("_name_or_path", Json());
  std::error_code ignored;
  parts.model_name = name.is_string() ? name.get<std::string>()
                                      : fs::weakly_canonical(folder, ignored).filename().string();
  parts.tokenizer.folder = path;
  parts.tokenizer.config = read_object_if_there(folder / "tokenizer_config.json");
  parts.generation = read_generation(parts.config, parts.tokenizer.config, folder);
  parts.chat_templates = read_templates(parts.tokenizer.config, folder);

  parts.weights = open_weights(path);
  for (const auto& [file, entry] : parts.weights.items) {
    CheckpointTensor tensor;
    const std::string name = has_vision ? unified_name(entry->name) : entry->name;
    tensor.info = {name, entry->dtype, entry->shape, static_cast<int64_t>(entry->bytes.size())};
    if (weight_type_of_dtype(entry->dtype)) tensor.stored = file->weight(*entry);
    if (!parts.tensors.emplace(name, std::move(tensor)).second)
      fail_argument("{}: tensor {} is there under two names", path, name);
  }
  return parts;
}

}  // namespace coppice
