// Reads little-endian fields from untrusted bytes. Every read is checked against what is left by
// subtraction, so no length or offset can wrap; what does not fit throws kInvalidArgument naming
// the field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "coppice/core/error.h"

namespace coppice {

class ByteReader final {
 public:
  // `what` names the source in messages.
  ByteReader(std::span<const std::byte> bytes, std::string what)
      : bytes_(bytes), what_(std::move(what)) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }
  const std::string& what() const { return what_; }

  std::span<const std::byte> take(uint64_t size, std::string_view field) {
    if (size > left()) {
      fail_argument("{}: {} needs {} bytes at offset {}, but only {} are left", what_, field, size,
                    position_, left());
    }
    const auto result = bytes_.subspan(position_, static_cast<std::size_t>(size));
    position_ += static_cast<std::size_t>(size);
    return result;
  }

  template <typename T>
  T read(std::string_view field) {
    T value;
    std::memcpy(&value, take(sizeof(T), field).data(), sizeof(T));
    return value;
  }

  std::string_view text(uint64_t size, std::string_view field) {
    const auto bytes = take(size, field);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  std::string what_;
  std::size_t position_ = 0;
};

}  // namespace coppice
