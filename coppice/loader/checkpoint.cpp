#include "coppice/loader/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/core/sha256.h"
#include "coppice/loader/checkpoint_parts.h"

namespace coppice {
namespace {

// Rows of each head from (pair, half) order to (half, pair) order: stored row 2j + s of a head
// becomes its row s * D/2 + j. Rows move whole, so packed types need no unpacking.
StoredTensor halves_order(const StoredTensor& stored, int64_t heads) {
  const int64_t rows = stored.shape.empty() ? 0 : stored.shape[0];
  const bool splits_block =
      stored.shape.size() < 2 && storage_traits(stored.type).block_values != 1;
  if (rows % (2 * heads) != 0 || splits_block) {
    fail_argument("tensor {} of {} [{}] cannot be split into {} heads of an even width",
                  stored.name, storage_traits(stored.type).name, fmt::join(stored.shape, ", "),
                  heads);
  }
  const auto row_bytes = stored.bytes.size() / static_cast<std::size_t>(rows);
  const int64_t half = rows / heads / 2;
  auto buffer = std::make_shared<std::vector<std::byte>>(stored.bytes.size());
  std::byte* to = buffer->data();
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t s = 0; s < 2; ++s) {
      for (int64_t j = 0; j < half; ++j, to += row_bytes) {
        const int64_t from = (head * half + j) * 2 + s;
        std::memcpy(to, stored.bytes.data() + static_cast<std::size_t>(from) * row_bytes,
                    row_bytes);
      }
    }
  }
  StoredTensor result = stored;
  result.bytes = *buffer;
  result.owner = std::move(buffer);
  return result;
}

}  // namespace

struct Checkpoint::State {
  explicit State(CheckpointParts read) : parts(std::move(read)) {
    if (parts.gguf) parts.tokenizer.gguf = &*parts.gguf;
  }
  std::vector<std::span<const std::byte>> files() const {
    std::vector<std::span<const std::byte>> result;
    if (parts.gguf) result.push_back(parts.gguf->bytes());
    for (const SafetensorsFile& file : parts.weights.files) result.push_back(file.bytes());
    return result;
  }

  CheckpointParts parts;
  std::string sha256;
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return Checkpoint(std::make_unique<State>(read_folder_checkpoint(path)));
  }
  if (path.ends_with(".safetensors")) {
    MappedFile::open(path);  // when it is not there, say that first
    fail_argument("{}: weights alone are no model; give the folder that also holds config.json",
                  path);
  }
  return Checkpoint(std::make_unique<State>(read_gguf_checkpoint(path)));
}

const std::string& Checkpoint::path() const { return state_->parts.path; }
const std::string& Checkpoint::format() const { return state_->parts.format; }
const Json& Checkpoint::config() const { return state_->parts.config; }
const Json& Checkpoint::vision_config() const { return state_->parts.vision_config; }
const Json& Checkpoint::image_processor_config() const { return state_->parts.image_processor; }
const GenerationDefaults& Checkpoint::generation() const { return state_->parts.generation; }
const TokenizerSource& Checkpoint::tokenizer() const { return state_->parts.tokenizer; }

const std::map<std::string, std::string>& Checkpoint::chat_templates() const {
  return state_->parts.chat_templates;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : state_->parts.tensors) result.push_back(name);
  return result;
}

std::vector<TensorInfo> Checkpoint::tensor_infos() const {
  std::vector<TensorInfo> result;
  for (const auto& [name, tensor] : state_->parts.tensors) result.push_back(tensor.info);
  return result;
}

bool Checkpoint::contains(std::string_view name) const {
  return state_->parts.tensors.contains(name);
}

std::optional<TensorInfo> Checkpoint::tensor_info(std::string_view name) const {
  const auto at = state_->parts.tensors.find(name);
  if (at == state_->parts.tensors.end()) return std::nullopt;
  return at->second.info;
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto at = state_->parts.tensors.find(name);
  if (at == state_->parts.tensors.end()) return nullptr;
  CheckpointTensor& tensor = at->second;
  if (tensor.stored.bytes.empty()) {
    fail_argument(
        "{}: tensor {} has dtype {}, which cannot be a weight here; expected F32, F16 or "
        "BF16",
        path(), name, tensor.info.type);
  }
  if (tensor.interleaved_heads > 0) {
    tensor.stored = halves_order(tensor.stored, tensor.interleaved_heads);
    tensor.interleaved_heads = 0;
  }
  return &tensor.stored;
}

const std::string& Checkpoint::sha256() const {
  if (state_->sha256.empty()) {
    Sha256 hash;
    for (const auto file : state_->files()) hash.update(file);
    state_->sha256 = hash.finish();
  }
  return state_->sha256;
}

void Checkpoint::set_sha256(std::string hash) { state_->sha256 = std::move(hash); }

std::vector<std::string> Checkpoint::weight_files() const {
  std::vector<std::string> paths;
  if (state_->parts.gguf) paths.push_back(state_->parts.gguf->path());
  for (const SafetensorsFile& file : state_->parts.weights.files) paths.push_back(file.path());
  return paths;
}

int64_t Checkpoint::file_bytes() const {
  int64_t total = 0;
  for (const auto file : state_->files()) total += static_cast<int64_t>(file.size());
  return total;
}

int64_t Checkpoint::parameters() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : state_->parts.tensors) {
    int64_t values = 1;
    for (const int64_t dim : tensor.info.shape) values *= dim;
    total += values;
  }
  return total;
}

Json Checkpoint::description() const {
  const CheckpointParts& parts = state_->parts;
  std::map<std::string, int64_t> types;
  for (const auto& [name, tensor] : parts.tensors) ++types[tensor.info.type];
  Json templates = Json::array();
  for (const auto& [name, text] : parts.chat_templates) templates.push_back(name);
  return {{"path", parts.path},
          {"format", parts.format},
          {"name", parts.model_name},
          {"model_type", parts.config.value("model_type", Json())},
          {"file_bytes", file_bytes()},
          {"parameters", parameters()},
          {"tensors", parts.tensors.size()},
          {"tensor_types", types},
          {"chat_templates", templates},
          {"eos_token_ids", parts.generation.eos_token_ids},
          {"config", parts.config}};
}

}  // namespace coppice
