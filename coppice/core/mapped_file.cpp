#include "coppice/core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "coppice/core/error.h"

namespace coppice {
namespace {

// Closes a descriptor at the end of a scope.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile MappedFile::open(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) {
    fail(ErrorCode::kNotFound, "cannot open {}: {}", path, std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) {
    fail(ErrorCode::kNotFound, "cannot read the size of {}: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) fail_argument("{} is not a regular file", path);

  MappedFile result;
  result.path_ = path;
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return result;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) {
    fail(ErrorCode::kCapacity, "cannot map {} ({} bytes): {}", path, size, std::strerror(errno));
  }
  result.owner_ = std::shared_ptr<const void>(
      address, [size](const void* mapped) { ::munmap(const_cast<void*>(mapped), size); });
  result.bytes_ = {static_cast<const std::byte*>(address), size};
  return result;
}

std::string read_text_file(const std::string& path) {
  const MappedFile file = MappedFile::open(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace coppice
