#include "coppice/loader/sharded.h"

#include <filesystem>
#include <map>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/core/mapped_file.h"

namespace coppice {
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Tensor name -> shard file name, checked.
std::map<std::string, std::string> read_index(const std::string& path) {
  const Json index = parse_json(read_text_file(path), path, {.reject_duplicate_keys = true});
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty()) {
    fail_argument("{}: has no \"weight_map\" of tensors to files", path);
  }
  std::map<std::string, std::string> result;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) fail_argument("{}: the file of tensor {} is not a text", path, name);
    const auto& text = file.get_ref<const std::string&>();
    const bool plain = !text.empty() && text != "." && text != ".." &&
                       text.find('/') == std::string::npos &&
                       text.find('\\') == std::string::npos && text.find('\0') == std::string::npos;
    if (!plain) {
      fail_argument(
          "{}: tensor {} is said to be in \"{}\"; expected the name of a file in the same "
          "folder",
          path, name, dump_json(file));
    }
    result.emplace(name, text);
  }
  return result;
}

ShardedWeights open_indexed(const std::filesystem::path& folder) {
  const std::string index_path = folder / kIndex;
  const auto index = read_index(index_path);
  std::map<std::string, std::size_t> shards;  // in the order of names
  for (const auto& [name, file] : index) shards.emplace(file, 0);
  ShardedWeights result;
  for (auto& [file, position] : shards) {
    const std::string path = folder / file;
    if (!is_there(path)) {
      fail(ErrorCode::kNotFound, "{}: the shard {} that {} names is missing", folder.string(), file,
           kIndex);
    }
    position = result.files.size();
    result.files.push_back(SafetensorsFile::open(path));
  }
  for (const auto& [name, file] : index) {
    const SafetensorsFile& shard = result.files[shards.at(file)];
    const SafetensorsEntry* entry = shard.find(name);
    if (!entry)
      fail_argument("{}: has no tensor {}, though {} says so", shard.path(), name, kIndex);
    result.items.push_back({&shard, entry});
  }
  return result;
}

}  // namespace

ShardedWeights open_weights(const std::string& folder) {
  const std::filesystem::path base(folder);
  if (is_there(base / kIndex)) return open_indexed(base);
  if (!is_there(base / kSingle)) {
    const bool pickled =
        is_there(base / "pytorch_model.bin") || is_there(base / "pytorch_model.bin.index.json");
    fail(ErrorCode::kNotFound, "{}: has neither {} nor {}{}", folder, kSingle, kIndex,
         pickled ? "; its pytorch_model.bin must be converted to safetensors first" : "");
  }
  ShardedWeights result;
  result.files.push_back(SafetensorsFile::open(base / kSingle));
  const SafetensorsFile& file = result.files.back();
  std::map<std::string_view, const SafetensorsEntry*> sorted;
  for (const SafetensorsEntry& entry : file.entries()) sorted.emplace(entry.name, &entry);
  for (const auto& [name, entry] : sorted) result.items.push_back({&file, entry});
  return result;
}

}  // namespace coppice
