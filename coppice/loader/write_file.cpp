// Writing a file so that it appears whole or not at all.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "coppice/core/error.h"
#include "coppice/loader/safetensors_file.h"

namespace coppice {
namespace {

// The new file, removed again unless it was renamed into place.
struct Draft {
  std::string path;
  int fd = -1;
  bool kept = false;
  ~Draft() {
    if (fd >= 0) ::close(fd);
    if (!kept) ::unlink(path.c_str());
  }
};

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail_argument("cannot write {}: {}", path, std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

}  // namespace

void write_file_atomically(const std::string& path,
                           std::span<const std::span<const std::byte>> parts) {
  std::string draft_path = path + ".XXXXXX";
  const int fd = ::mkostemp(draft_path.data(), O_CLOEXEC);
  if (fd < 0) fail_argument("cannot create a file beside {}: {}", path, std::strerror(errno));
  Draft draft{draft_path, fd};
  for (const auto part : parts) write_all(fd, part, path);
  // mkostemp makes the file private; a model file is as readable as any other new file.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::fchmod(fd, 0666 & ~mask) != 0 || ::fsync(fd) != 0 ||
      ::rename(draft_path.c_str(), path.c_str()) != 0) {
    fail_argument("cannot write {}: {}", path, std::strerror(errno));
  }
  draft.kept = true;
}

}  // namespace coppice
