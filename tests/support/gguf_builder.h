// Builds small GGUF files in memory, sound or deliberately damaged, for tests and fuzz seeds.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/stored_tensor.h"

namespace coppice::testing {

// Little-endian bytes that grow.
class ByteWriter final {
 public:
  template <typename T>
  ByteWriter& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  ByteWriter& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  // A length of 64 bits and the text.
  ByteWriter& text(std::string_view value) { return put<uint64_t>(value.size()).raw(value); }
  ByteWriter& pad_to(std::size_t multiple) {
    bytes_.append((multiple - bytes_.size() % multiple) % multiple, '\0');
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class GgufBuilder final {
 public:
  explicit GgufBuilder(uint32_t version = 3) : version_(version) {}

  GgufBuilder& set_u32(std::string_view key, uint32_t value) {
    return entry(key, 4, ByteWriter().put(value).bytes());
  }
  GgufBuilder& set_f32(std::string_view key, float value) {
    return entry(key, 6, ByteWriter().put(value).bytes());
  }
  GgufBuilder& set_bool(std::string_view key, bool value) {
    return entry(key, 7, ByteWriter().put<uint8_t>(value).bytes());
  }
  GgufBuilder& set_string(std::string_view key, std::string_view value) {
    return entry(key, 8, ByteWriter().text(value).bytes());
  }
  GgufBuilder& set_strings(std::string_view key, const std::vector<std::string>& values) {
    ByteWriter array;
    array.put<uint32_t>(8).put<uint64_t>(values.size());
    for (const std::string& value : values) array.text(value);
    return entry(key, 9, array.bytes());
  }
  GgufBuilder& set_i32s(std::string_view key, const std::vector<int32_t>& values) {
    ByteWriter array;
    array.put<uint32_t>(5).put<uint64_t>(values.size());
    for (const int32_t value : values) array.put(value);
    return entry(key, 9, array.bytes());
  }
  // Any value type with its raw bytes.
  GgufBuilder& entry(std::string_view key, uint32_t type, std::string_view value) {
    metadata_.text(key).put(type).raw(value);
    ++metadata_count_;
    return *this;
  }

  // A float32 tensor; `shape` is row-major.
  GgufBuilder& tensor(std::string_view name, const std::vector<int64_t>& shape,
                      const std::vector<float>& values) {
    return tensor(name, shape, 0,
                  {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }
  // A tensor of the file format's type number, with its packed bytes.
  GgufBuilder& tensor(std::string_view name, const std::vector<int64_t>& shape, uint32_t type,
                      std::string_view data) {
    data_.pad_to(alignment_);
    raw_tensor(name, {shape.rbegin(), shape.rend()}, type, data_.bytes().size());
    data_.raw(data);
    return *this;
  }
  // A tensor info with dimensions in the file's order and any offset; adds no data.
  GgufBuilder& raw_tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                          uint64_t offset) {
    tensors_.text(name).put<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) tensors_.put(dim);
    tensors_.put(type).put(offset);
    ++tensor_count_;
    return *this;
  }
  GgufBuilder& raw_data(std::string_view data) {
    data_.raw(data);
    return *this;
  }
  // Of the data written from here on; say so in the metadata yourself.
  GgufBuilder& align(std::size_t alignment) {
    alignment_ = alignment;
    return *this;
  }

  std::string bytes() const {
    ByteWriter file;
    file.raw("GGUF").put(version_).put(tensor_count_).put(metadata_count_);
    file.raw(metadata_.bytes()).raw(tensors_.bytes());
    if (alignment_ != 0) file.pad_to(alignment_);
    return file.raw(data_.bytes()).bytes();
  }

 private:
  uint32_t version_;
  std::size_t alignment_ = 32;
  uint64_t tensor_count_ = 0;
  uint64_t metadata_count_ = 0;
  ByteWriter metadata_, tensors_, data_;
};

}  // namespace coppice::testing
