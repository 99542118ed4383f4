// A GGUF model file (versions 2 and 3, little-endian), mapped and checked: typed metadata and
// tensors.
//
//   "GGUF" | version u32 | tensor count u64 | metadata count u64
//   metadata: key string | type u32 | value            string: length u64 | bytes
//   tensors:  name string | dims u32 | each dim u64, innermost first | type u32 | offset u64
//   padding to general.alignment (default 32) | tensor data, offsets relative to here
//
// Invariants once open: every view lies inside the file; counts, sizes and offsets were checked
// without wrapping; tensors are aligned and do not overlap; keys and tensor names are unique.
// Parsing allocates in proportion to the file, never to what the file claims. Metadata are views:
// they live as long as this object (or a copy) does. Immutable after open, so thread-safe.
// Source: the GGUF specification (ggml-org/ggml, docs/gguf.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coppice/core/stored_tensor.h"

namespace coppice {

// Values as the format numbers them.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

std::string_view gguf_type_name(GgufType type);

// One metadata value: a view of its bytes in the file.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element = GgufType::kUint8;  // of an array; else equal to `type`
  uint64_t count = 1;                   // elements of an array
  std::span<const std::byte> bytes;     // the value; of a string its text; of an array its elements
};

class GgufFile final {
 public:
  // Throws kNotFound when there is no such file, kInvalidArgument when it is damaged, foreign, of
  // an unsupported version or byte order, holds an unsupported tensor type, or is one part of
  // several.
  static GgufFile open(const std::string& path);
  // Parses bytes that `owner` keeps alive; `what` names them in messages.
  static GgufFile parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                        std::string what);

  uint32_t version() const { return version_; }
  const std::string& path() const { return what_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::shared_ptr<const void> owner() const { return owner_; }

  // Metadata in file order.
  const std::vector<std::pair<std::string_view, GgufValue>>& metadata() const { return metadata_; }
  const GgufValue* find(std::string_view key) const;

  // nullopt when the key is absent. Throws kInvalidArgument when it is there with another type, or
  // an integer does not fit int64_t. find_float also takes integers.
  std::optional<std::string_view> find_string(std::string_view key) const;
  std::optional<int64_t> find_int(std::string_view key) const;
  std::optional<double> find_float(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  // Arrays. The texts are views into the file.
  std::optional<std::vector<std::string_view>> find_strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> find_ints(std::string_view key) const;
  std::optional<std::vector<double>> find_floats(std::string_view key) const;
  std::optional<std::vector<bool>> find_bools(std::string_view key) const;

  // As above, but throws kInvalidArgument naming the key when it is absent.
  std::string_view get_string(std::string_view key) const;
  int64_t get_int(std::string_view key) const;
  double get_float(std::string_view key) const;

  // Tensors in file order, shapes row-major, names as in the file.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find_tensor(std::string_view name) const;

 private:
  friend class GgufParser;

  std::string what_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
  uint32_t version_ = 0;
  std::vector<std::pair<std::string_view, GgufValue>> metadata_;
  std::unordered_map<std::string_view, std::size_t> metadata_index_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> tensor_index_;  // keys are views into the file
};

}  // namespace coppice
