#include "coppice/train/document_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/sha256.h"

namespace coppice {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// As much of [offset, offset + size) as there is.
std::size_t read_at(int fd, char* to, std::size_t size, int64_t offset, const std::string& path) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(fd, to + done, size - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_argument("cannot read {}: {}", path, std::strerror(errno));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace

DocumentFile DocumentFile::open(const std::string& path) {
  DocumentFile file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file.fd_ < 0) fail(ErrorCode::kNotFound, "cannot open {}: {}", path, std::strerror(errno));
  struct stat info {};
  if (::fstat(file.fd_, &info) != 0 || !S_ISREG(info.st_mode))
    fail_argument("{}: expected a file of JSON lines", path);
  file.scan();
  if (file.lines_.empty()) fail_argument("{}: holds no document, expected one a line", path);
  return file;
}

DocumentFile::DocumentFile(DocumentFile&& other) noexcept { *this = std::move(other); }

DocumentFile& DocumentFile::operator=(DocumentFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(sha256_, other.sha256_);
  std::swap(lines_, other.lines_);
  return *this;
}

DocumentFile::~DocumentFile() {
  if (fd_ >= 0) ::close(fd_);
}

void DocumentFile::scan() {
  std::vector<char> buffer(kReadBytes);
  Sha256 hash;
  Line line{0, 1};
  bool blank = true;
  const auto end_line = [&](int64_t end) {
    if (end - line.offset > kMaxLineBytes)
      fail_argument("{}:{}: a line of {} bytes; at most {} are allowed", path_, line.number,
                    end - line.offset, kMaxLineBytes);
    if (!blank) lines_.push_back(line);
  };
  while (const std::size_t got = read_at(fd_, buffer.data(), kReadBytes, bytes_, path_)) {
    hash.update({reinterpret_cast<const std::byte*>(buffer.data()), got});
    for (std::size_t i = 0; i < got; ++i) {
      if (buffer[i] != '\n') {
        blank = blank && is_blank(buffer[i]);
        continue;
      }
      const int64_t at = bytes_ + static_cast<int64_t>(i);
      end_line(at);
      line = {at + 1, line.number + 1};
      blank = true;
    }
    bytes_ += static_cast<int64_t>(got);
  }
  end_line(bytes_);
  sha256_ = hash.finish();
}

std::string DocumentFile::where(int64_t index) const {
  return fmt::format("{}:{}", path_, lines_.at(static_cast<std::size_t>(index)).number);
}

Document DocumentFile::read(int64_t index) const {
  const int64_t offset = lines_.at(static_cast<std::size_t>(index)).offset;
  // Up to the next document at most; blank lines between the two end it sooner.
  const auto next = static_cast<std::size_t>(index + 1);
  const int64_t last = next < lines_.size() ? lines_[next].offset : bytes_;
  const int64_t end = std::min(last, offset + kMaxLineBytes);
  std::string text(static_cast<std::size_t>(end - offset), '\0');
  const std::size_t got = read_at(fd_, text.data(), text.size(), offset, path_);
  const std::size_t stop = text.find('\n');
  if (got < text.size())
    fail_argument("{}: the file is shorter than when it was opened", where(index));
  if (stop != std::string::npos) text.resize(stop);
  return parse_document(text, where(index));
}

}  // namespace coppice
