#include "apps/hash_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/folders.h"
#include "coppice/core/json.h"
#include "coppice/core/mapped_file.h"
#include "coppice/core/sha256.h"
#include "coppice/loader/safetensors_file.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostEntries = 256;

fs::path cache_file() { return cache_folder() / "hashes.json"; }

// What tells the files apart from any other state of theirs; empty when the system does not say.
std::string identity(const Checkpoint& checkpoint) {
  std::string result;
  for (const std::string& path : checkpoint.weight_files()) {
    struct stat info = {};
    if (::stat(path.c_str(), &info) != 0) return {};
    result += fmt::format("{}:{}:{}:{}.{:09};", info.st_dev, info.st_ino, info.st_size,
                          info.st_ctim.tv_sec, info.st_ctim.tv_nsec);
  }
  return result;
}

Json read_cache() {
  try {
    Json cache = parse_json(read_text_file(cache_file().string()), "hashes.json");
    if (cache.is_object()) return cache;
  } catch (const std::exception&) {
  }
  return Json::object();
}

void remember(const std::string& key, const std::string& hash) {
  try {
    Json cache = read_cache();
    if (cache.size() >= kMostEntries) cache = Json::object();
    cache[key] = hash;
    const std::string text = cache.dump(1) + "\n";
    const std::span<const std::byte> parts[] = {std::as_bytes(std::span(text))};
    fs::create_directories(cache_folder());
    write_file_atomically(cache_file().string(), parts);
  } catch (const std::exception&) {
  }
}

bool is_hash(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().size() == 64;
}

}  // namespace

const std::string& find_sha256(Checkpoint& checkpoint) {
  const std::string key = identity(checkpoint);
  const Json cache = key.empty() ? Json::object() : read_cache();
  const auto found = cache.find(key);
  if (found != cache.end() && is_hash(*found)) {
    checkpoint.set_sha256(found->get<std::string>());
  } else if (!key.empty()) {
    remember(key, checkpoint.sha256());
  }
  return checkpoint.sha256();
}

std::string sha256_of_gate(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<std::string> files = {path};
  if (fs::is_directory(path)) {
    files.clear();
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.is_regular_file()) files.push_back(entry.path().string());
    std::ranges::sort(files);
  }
  Sha256 hash;
  for (const std::string& file : files) hash.update(MappedFile::open(file).bytes());
  return hash.finish();
}

}  // namespace coppice
