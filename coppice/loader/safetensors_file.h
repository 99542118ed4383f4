// A safetensors file, mapped and checked as strictly as the reference library does; and a writer.
//
//   header length u64 | JSON header: name -> {dtype, shape, data_offsets}, "__metadata__" -> texts
//   | tensor data, offsets relative to here
//
// Invariants once open: the header has at most 100 MB, starts with '{' and holds no key twice; the
// spans cover the data from its first to its last byte without overlap or hole; each span has
// exactly the bytes of its dtype and shape. Immutable, so thread-safe.
// Source: the format description and validation rules of huggingface/safetensors.
// Differs from the reference: a key standing twice and blanks before the '{' are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "coppice/core/stored_tensor.h"

namespace coppice {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", "I64", ...: as the header names it
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

class SafetensorsFile final {
 public:
  // Throws kNotFound when there is no such file, kInvalidArgument when it breaks a rule above.
  static SafetensorsFile open(const std::string& path);
  // Parses bytes that `owner` keeps alive; `what` names them in messages.
  static SafetensorsFile parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                               std::string what);

  const std::string& path() const { return what_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // In the order of their data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsEntry* find(std::string_view name) const;

  // An entry as a weight. Throws kInvalidArgument for a dtype other than F32, F16 and BF16, and for
  // a shape with a zero.
  StoredTensor weight(const SafetensorsEntry& entry) const;

 private:
  std::string what_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
  std::map<std::string, std::string> metadata_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string, std::size_t> index_;
};

// "F32" and so on to the storage type of weights; nullopt for every other dtype.
std::optional<StorageType> weight_type_of_dtype(std::string_view dtype);
// The reverse. REQUIRES: a plain type (F32, F16, BF16).
std::string_view dtype_of_weight_type(StorageType type);

// Writes the same bytes for the same input, whatever the order of `entries`: wider dtypes first,
// then by name, header padded so that the data start at a multiple of 8. The file appears under
// `path` whole or not at all. Throws kInvalidArgument when an entry does not fit its shape, a name
// stands twice, or the folder cannot be written.
void write_safetensors(const std::string& path, std::vector<SafetensorsEntry> entries,
                       const std::map<std::string, std::string>& metadata);

// Writes `parts` one after another into a new file beside `path`, then renames it to `path`.
void write_file_atomically(const std::string& path,
                           std::span<const std::span<const std::byte>> parts);

}  // namespace coppice
