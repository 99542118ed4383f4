// A file of JSON lines, one document a line, read by number.
//
// Opening reads the file once, to find where lines begin and to hash it; after that a document is
// read when it is asked for, so memory is 8 bytes a line, whatever the file holds. Lines of blanks
// alone are passed over. The file must not change while it is open: a line that is no longer where
// it was is an Error. Reading is thread-safe. Move-only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/train/document.h"

namespace coppice {

class DocumentFile final {
 public:
  // Throws kNotFound when there is no such file; kInvalidArgument when it has no document, or a
  // line above kMaxLineBytes.
  static DocumentFile open(const std::string& path);
  DocumentFile(DocumentFile&& other) noexcept;
  DocumentFile& operator=(DocumentFile&& other) noexcept;
  ~DocumentFile();

  static constexpr int64_t kMaxLineBytes = int64_t{1} << 28;

  const std::string& path() const { return path_; }
  int64_t size() const { return static_cast<int64_t>(lines_.size()); }  // documents
  int64_t file_bytes() const { return bytes_; }
  const std::string& sha256() const { return sha256_; }

  // "PATH:LINE", for messages. REQUIRES: 0 <= index < size().
  std::string where(int64_t index) const;
  // Throws as parse_document.
  Document read(int64_t index) const;

 private:
  DocumentFile() = default;
  void scan();

  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;
  std::string sha256_;
  struct Line {
    int64_t offset;
    int64_t number;  // from 1, as editors count
  };
  std::vector<Line> lines_;
};

}  // namespace coppice
