// A read-only file mapped into memory. Copies share one mapping, which ends with the last of them.
//
// The size is taken once, when the file is opened: a reader checks every range against
// bytes().size() by subtraction, so no offset can pass the end. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace coppice {

class MappedFile final {
 public:
  // Throws kNotFound when there is no such file, kInvalidArgument when it is not a regular file.
  static MappedFile open(const std::string& path);

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Keeps the mapping alive; hand it to whatever holds a view of bytes().
  std::shared_ptr<const void> owner() const { return owner_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

// The whole file as text. Throws as MappedFile::open.
std::string read_text_file(const std::string& path);

}  // namespace coppice
