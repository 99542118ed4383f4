#include "coppice/server/session_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/core/mapped_file.h"
#include "coppice/loader/safetensors_file.h"
#include "coppice/server/api_error.h"
#include "coppice/server/session_file.h"
#include "coppice/server/text.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kEnding = ".session";
constexpr std::size_t kDraftEnding = 7;  // a dot and six letters, of write_file_atomically

bool is_session(std::string_view file) {
  return file.ends_with(kEnding) && is_plain_name(file.substr(0, file.size() - kEnding.size()));
}

bool is_draft(std::string_view file) {
  return file.size() > kDraftEnding && file[file.size() - kDraftEnding] == '.' &&
         is_session(file.substr(0, file.size() - kDraftEnding));
}

void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

std::vector<fs::path> files_in(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    files.push_back(it->path());
  }
  return files;
}

}  // namespace

SessionStore::SessionStore(const SessionStoreConfig& config) : config_(config) {
  std::error_code error;
  if (!fs::is_directory(config_.folder, error)) {
    fs::create_directories(config_.folder, error);
    if (error) fail_argument("cannot make the folder {}: {}", config_.folder, error.message());
    ::chmod(config_.folder.c_str(), 0700);
  }
  if (::access(config_.folder.c_str(), R_OK | W_OK | X_OK) != 0) {
    fail_argument("cannot read and write the folder {}: {}", config_.folder, std::strerror(errno));
  }
  for (const fs::path& path : files_in(config_.folder)) {
    if (is_draft(path.filename().string())) fs::remove(path, error);
  }
}

std::string SessionStore::path_of(const std::string& name) const {
  if (!is_plain_name(name)) {
    throw ApiError(400, "name: expected 1 to 64 letters, digits, _ and -, got " + in_quotes(name),
                   "name", "invalid_value");
  }
  return (fs::path(config_.folder) / (name + std::string(kEnding))).string();
}

std::vector<SessionStore::Entry> SessionStore::list() {
  std::vector<Entry> entries;
  for (const fs::path& path : files_in(config_.folder)) {
    const std::string file = path.filename().string();
    struct stat status {};
    if (!is_session(file) || ::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) {
      continue;
    }
    entries.push_back({.name = file.substr(0, file.size() - kEnding.size()),
                       .bytes = status.st_size,
                       .created = status.st_mtim.tv_sec});
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  return entries;
}

SessionStore::Entry SessionStore::save(const std::string& name, const SessionImage& image) {
  const std::string path = path_of(name);
  const std::lock_guard lock(mutex_);
  const SessionFile file(image, config_.settings);
  int64_t others = 0;
  for (const Entry& entry : list()) others += entry.name == name ? 0 : entry.bytes;
  if (file.bytes() > config_.max_bytes - others) {
    throw ApiError(507,
                   fmt::format("the session takes {} bytes; sessions hold {} of {}", file.bytes(),
                               others, config_.max_bytes),
                   "name", "session_not_saved");
  }
  try {
    write_file_atomically(path, file.parts());
  } catch (const Error& error) {
    log_warning("session {} was not saved: {}", name, error.what());
    throw ApiError(507, "the session could not be written to disk", "name", "session_not_saved");
  }
  ::chmod(path.c_str(), 0600);
  sync_folder(config_.folder);
  for (const Entry& entry : list()) {
    if (entry.name == name) return entry;
  }
  throw ApiError(507, "the session is gone again", "name", "session_not_saved");
}

SessionImage SessionStore::load(const std::string& name) {
  const std::string path = path_of(name);
  const std::lock_guard lock(mutex_);
  try {
    const MappedFile file = MappedFile::open(path);
    return read_session(file.bytes(), config_.settings, config_.like);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) {
      throw ApiError(404, "there is no session " + in_quotes(name), "name", "session_not_found");
    }
    throw ApiError(409, error.what(), "name", "session_unusable");
  }
}

void SessionStore::remove(const std::string& name) {
  const std::string path = path_of(name);
  const std::lock_guard lock(mutex_);
  if (::unlink(path.c_str()) != 0) {
    throw ApiError(404, "there is no session " + in_quotes(name), "name", "session_not_found");
  }
  sync_folder(config_.folder);
}

}  // namespace coppice
