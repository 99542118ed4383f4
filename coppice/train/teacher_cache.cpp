#include "coppice/train/teacher_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/core/sha256.h"
#include "coppice/loader/safetensors_file.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".hidden";
constexpr const char* kTensor = "hidden";

// One process at a time counts the folder and adds to it.
class FolderLock final {
 public:
  explicit FolderLock(const std::string& folder)
      : fd_(::open((folder + "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {
    if (fd_ < 0 || ::flock(fd_, LOCK_EX) != 0)
      fail_argument("cannot lock {}: {}", folder, std::strerror(errno));
  }
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

// Of all files, drafts that a killed process left too; drafts are removed on the way.
int64_t bytes_in(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.find(std::string(kEnding) + ".") != std::string::npos)
      fs::remove(entry.path(), ignored);
    else if (name.ends_with(kEnding))
      bytes += static_cast<int64_t>(entry.file_size(ignored));
  }
  return bytes;
}

std::string_view dtype_name(at::ScalarType type) {
  return type == at::kBFloat16 ? "BF16" : type == at::kFloat ? "F32" : "";
}

Batch one_document(const Batch& batch, std::size_t b) {
  const int64_t begin = batch.cu_seqlens[b], end = batch.cu_seqlens[b + 1];
  Batch one;
  one.token_ids = batch.token_ids.slice(0, begin, end);
  one.positions = batch.positions.slice(-1, begin, end);
  one.sequence_ids = {0};
  one.cu_seqlens = {0, end - begin};
  return one;
}

}  // namespace

TeacherCache::TeacherCache(std::string folder, int64_t bytes, std::string model)
    : folder_(std::move(folder)), model_(std::move(model)), bytes_(bytes) {
  if (bytes_ < 1) fail_argument("cache of the teacher: expected bytes above 0, got {}", bytes_);
  std::error_code fault;
  fs::create_directories(folder_, fault);
  if (fault) fail_argument("cannot make the folder {}: {}", folder_, fault.message());
}

std::string TeacherCache::path_of(std::span<const int64_t> tokens) const {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(model_)));
  hash.update(std::as_bytes(tokens));
  return folder_ + "/" + hash.finish() + kEnding;
}

std::optional<at::Tensor> TeacherCache::find(const std::string& path, int64_t tokens) const {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  try {
    const SafetensorsFile file = SafetensorsFile::open(path);
    const SafetensorsEntry* entry = file.find(kTensor);
    if (entry == nullptr || entry->shape.size() != 2 || entry->shape[0] != tokens ||
        (entry->dtype != "BF16" && entry->dtype != "F32"))
      fail_argument("{}: expected hidden states of {} tokens", path, tokens);
    const auto sum = file.metadata().find("sha256");
    if (sum == file.metadata().end() || sum->second != sha256_of(entry->bytes))
      fail_argument("{}: the numbers do not fit their checksum", path);
    at::Tensor hidden = torch::empty(
        {entry->shape[0], entry->shape[1]},
        at::TensorOptions().dtype(entry->dtype == "BF16" ? at::kBFloat16 : at::kFloat));
    std::memcpy(hidden.mutable_data_ptr(), entry->bytes.data(), entry->bytes.size());
    return hidden;
  } catch (const Error& error) {
    log_warning("cache of the teacher: a document is read anew: {}", error.what());
    return std::nullopt;
  }
}

void TeacherCache::store(const std::string& path, const at::Tensor& hidden) {
  const at::Tensor data = hidden.to(at::kCPU).contiguous();
  const std::string_view dtype = dtype_name(data.scalar_type());
  if (full_ || dtype.empty()) return;
  const std::span bytes(static_cast<const std::byte*>(data.const_data_ptr()), data.nbytes());
  constexpr int64_t kHeader = 512;  // at most, of a file with one tensor
  try {
    const FolderLock lock(folder_);
    if (bytes_in(folder_) + static_cast<int64_t>(bytes.size()) + kHeader > bytes_) {
      full_ = true;
      return;
    }
    write_safetensors(path, {{kTensor, std::string(dtype), {data.size(0), data.size(1)}, bytes}},
                      {{"sha256", sha256_of(bytes)}});
    ++stored_;
  } catch (const std::exception& error) {
    full_ = true;
    log_warning("cache of the teacher: nothing more is kept: {}", error.what());
  }
}

at::Tensor TeacherCache::hidden(const Batch& batch,
                                const std::function<at::Tensor(const Batch&)>& forward) {
  const at::Tensor ids = batch.token_ids.to(at::kCPU).contiguous();
  const int64_t* const id = ids.const_data_ptr<int64_t>();
  std::vector<at::Tensor> parts;
  for (std::size_t b = 0; b + 1 < batch.cu_seqlens.size(); ++b) {
    const int64_t begin = batch.cu_seqlens[b], end = batch.cu_seqlens[b + 1];
    const std::string path = path_of({id + begin, static_cast<std::size_t>(end - begin)});
    if (std::optional<at::Tensor> kept = find(path, end - begin)) {
      parts.push_back(kept->to(batch.token_ids.device()));
      ++found_;
      continue;
    }
    parts.push_back(forward(one_document(batch, b)));
    store(path, parts.back());
  }
  return torch::cat(parts);
}

}  // namespace coppice
