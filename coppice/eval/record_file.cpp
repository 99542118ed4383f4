#include "coppice/eval/record_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"

namespace coppice {
namespace {

constexpr const char* kHead = "evaluation";

std::string read_all(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
    fail_argument("{}: expected a file to write results to", path);
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got =
        ::pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_argument("cannot read {}: {}", path, std::strerror(errno));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

std::string head_line(const Json& config) { return dump_json({{kHead, config}}) + "\n"; }

// "chunk is 128 there and 64 here, seed is ..", of the first few that differ.
std::string differences(const Json& there, const Json& here) {
  constexpr int kMost = 4;
  std::string text;
  int count = 0;
  Json all = there;
  all.update(here);
  for (const auto& [name, ignored] : all.items()) {
    const Json before = there.value(name, Json()), now = here.value(name, Json());
    if (before == now || ++count > kMost) continue;
    text += fmt::format("{}{} is {} there and {} now", text.empty() ? "" : ", ", name,
                        dump_json(before), dump_json(now));
  }
  return count > kMost ? text + ", and more" : text;
}

// The configuration that a file's first line tells; null when it tells none.
Json config_of(std::string_view line, const std::string& path) {
  try {
    const Json head = parse_json(line, path);
    if (head.is_object() && head.size() == 1 && head.contains(kHead) && head[kHead].is_object())
      return head[kHead];
  } catch (const Error&) {
  }
  return Json();
}

// The lines after the first of a text that ends in a line break.
std::vector<Json> parse_rows(std::string_view text, const std::string& path) {
  std::vector<Json> rows;
  int64_t line = 1;
  for (std::size_t at = text.find('\n') + 1; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    Json row = parse_json(text.substr(at, end - at), fmt::format("{}:{}", path, ++line));
    if (!row.is_object()) fail_argument("{}:{}: expected a JSON object", path, line);
    rows.push_back(std::move(row));
    at = end + 1;
  }
  return rows;
}

}  // namespace

RecordFile RecordFile::open(const std::string& path, const Json& config, bool restart) {
  RecordFile file;
  file.path_ = path;
  file.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file.fd_ < 0) fail(ErrorCode::kNotFound, "cannot open {}: {}", path, std::strerror(errno));
  if (::flock(file.fd_, LOCK_EX | LOCK_NB) != 0)
    fail_argument("{}: another evaluation is writing to it", path);
  file.load(config, restart);
  return file;
}

std::vector<Json> RecordFile::read(const std::string& path) {
  const std::string text = read_text_file(path);
  const std::size_t last = text.rfind('\n');
  const std::string_view whole =
      std::string_view(text).substr(0, last == std::string::npos ? 0 : last + 1);
  if (whole.empty() || config_of(whole.substr(0, whole.find('\n')), path).is_null())
    fail_argument("{}: is no file of evaluation results", path);
  return parse_rows(whole, path);
}

void RecordFile::load(const Json& config, bool restart) {
  const std::string text = read_all(fd_, path_);
  const std::string head = head_line(config);
  const std::size_t first = text.find('\n');
  // Nothing yet, or killed while the first line was written.
  bool fresh = first == std::string::npos && head.starts_with(text);
  if (!fresh) {
    const Json before = config_of(std::string_view(text).substr(0, first), path_);
    if (before.is_null())
      fail_argument("{}: is no file of evaluation results; it is left as it is", path_);
    if (!restart && before != config)
      fail_argument(
          "{} holds results of another configuration: {}; write to another file, or restart it to "
          "lose them",
          path_, differences(before, config));
    fresh = restart || first == std::string::npos;
  }
  if (fresh) {
    if (::ftruncate(fd_, 0) != 0) fail_argument("cannot write {}: {}", path_, std::strerror(errno));
    write(head);
    return;
  }
  bytes_ = static_cast<int64_t>(text.rfind('\n')) + 1;
  rows_ = parse_rows(std::string_view(text).substr(0, static_cast<std::size_t>(bytes_)), path_);
  if (::ftruncate(fd_, bytes_) != 0)
    fail_argument("cannot write {}: {}", path_, std::strerror(errno));
}

void RecordFile::append(const Json& row) {
  write(dump_json(row) + "\n");
  rows_.push_back(row);
}

void RecordFile::write(const std::string& line) {
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t put = ::pwrite(fd_, line.data() + done, line.size() - done,
                                 static_cast<off_t>(bytes_) + static_cast<off_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      const int fault = errno;
      const bool whole = ::ftruncate(fd_, bytes_) == 0;
      fail(ErrorCode::kCapacity, "cannot write {}: {}{}", path_, std::strerror(fault),
           whole ? "" : "; its last line is cut");
    }
    done += static_cast<std::size_t>(put);
  }
  bytes_ += static_cast<int64_t>(line.size());
}

RecordFile::RecordFile(RecordFile&& other) noexcept { *this = std::move(other); }

RecordFile& RecordFile::operator=(RecordFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(rows_, other.rows_);
  return *this;
}

RecordFile::~RecordFile() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace coppice
