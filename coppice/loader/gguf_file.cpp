#include "coppice/loader/gguf_file.h"

#include <cstring>
#include <limits>

#include "coppice/core/error.h"

namespace coppice {
namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

[[noreturn]] void wrong_type(const GgufFile& file, std::string_view key, const GgufValue& value,
                             std::string_view expected) {
  const bool array = value.type == GgufType::kArray;
  fail_argument("{}: {} must be {}, got {}{}", file.path(), key, expected,
                array ? "an array of " : "", gguf_type_name(value.element));
}

// Element `index` of a value of integer type; nullopt when it has another type.
std::optional<int64_t> int_at(const GgufFile& file, std::string_view key, const GgufValue& value,
                              std::size_t index) {
  const std::byte* p = value.bytes.data();
  switch (value.element) {
    case GgufType::kUint8:
      return load<uint8_t>(p + index);
    case GgufType::kInt8:
      return load<int8_t>(p + index);
    case GgufType::kUint16:
      return load<uint16_t>(p + 2 * index);
    case GgufType::kInt16:
      return load<int16_t>(p + 2 * index);
    case GgufType::kUint32:
      return load<uint32_t>(p + 4 * index);
    case GgufType::kInt32:
      return load<int32_t>(p + 4 * index);
    case GgufType::kInt64:
      return load<int64_t>(p + 8 * index);
    case GgufType::kUint64: {
      const auto wide = load<uint64_t>(p + 8 * index);
      if (wide > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail_argument("{}: {} is {}, too large for any use", file.path(), key, wide);
      }
      return static_cast<int64_t>(wide);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> float_at(const GgufFile& file, std::string_view key, const GgufValue& value,
                               std::size_t index) {
  if (value.element == GgufType::kFloat32) return load<float>(value.bytes.data() + 4 * index);
  if (value.element == GgufType::kFloat64) return load<double>(value.bytes.data() + 8 * index);
  if (const auto integer = int_at(file, key, value, index)) return static_cast<double>(*integer);
  return std::nullopt;
}

std::optional<bool> bool_at(const GgufFile&, std::string_view, const GgufValue& value,
                            std::size_t index) {
  if (value.element != GgufType::kBool) return std::nullopt;
  return value.bytes[index] != std::byte{0};
}

template <typename T>
using ElementReader = std::optional<T> (*)(const GgufFile&, std::string_view, const GgufValue&,
                                           std::size_t);

template <typename T>
std::optional<T> find_scalar(const GgufFile& file, std::string_view key, ElementReader<T> at,
                             std::string_view expected) {
  const GgufValue* value = file.find(key);
  if (!value) return std::nullopt;
  std::optional<T> result;
  if (value->type != GgufType::kArray) result = at(file, key, *value, 0);
  if (!result) wrong_type(file, key, *value, expected);
  return result;
}

template <typename T>
std::optional<std::vector<T>> find_array(const GgufFile& file, std::string_view key,
                                         ElementReader<T> at, std::string_view expected) {
  const GgufValue* value = file.find(key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::kArray) wrong_type(file, key, *value, expected);
  std::vector<T> result;
  result.reserve(value->count);
  for (std::size_t i = 0; i < value->count; ++i) {
    const std::optional<T> element = at(file, key, *value, i);
    if (!element) wrong_type(file, key, *value, expected);
    result.push_back(*element);
  }
  return result;
}

template <typename T>
T required(const GgufFile& file, std::string_view key, std::optional<T> value) {
  if (!value) fail_argument("{}: the metadata key {} is missing", file.path(), key);
  return *value;
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  constexpr std::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                         "int32",  "float32", "bool",   "string", "array",
                                         "uint64", "int64",   "float64"};
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto at = metadata_index_.find(key);
  return at == metadata_index_.end() ? nullptr : &metadata_[at->second].second;
}

const StoredTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto at = tensor_index_.find(name);
  return at == tensor_index_.end() ? nullptr : &tensors_[at->second];
}

std::optional<std::string_view> GgufFile::find_string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::kString) wrong_type(*this, key, *value, "a string");
  return as_text(value->bytes);
}

std::optional<int64_t> GgufFile::find_int(std::string_view key) const {
  return find_scalar<int64_t>(*this, key, int_at, "an integer");
}

std::optional<double> GgufFile::find_float(std::string_view key) const {
  return find_scalar<double>(*this, key, float_at, "a number");
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  return find_scalar<bool>(*this, key, bool_at, "a boolean");
}

std::optional<std::vector<std::string_view>> GgufFile::find_strings(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::kArray || value->element != GgufType::kString) {
    wrong_type(*this, key, *value, "an array of strings");
  }
  std::vector<std::string_view> result;
  result.reserve(value->count);
  // The parser has walked these lengths already: they stay inside value->bytes.
  std::span<const std::byte> rest = value->bytes;
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto length = load<uint64_t>(rest.data());
    result.push_back(as_text(rest.subspan(sizeof(uint64_t), length)));
    rest = rest.subspan(sizeof(uint64_t) + length);
  }
  return result;
}

std::optional<std::vector<int64_t>> GgufFile::find_ints(std::string_view key) const {
  return find_array<int64_t>(*this, key, int_at, "an array of integers");
}

std::optional<std::vector<double>> GgufFile::find_floats(std::string_view key) const {
  return find_array<double>(*this, key, float_at, "an array of numbers");
}

std::optional<std::vector<bool>> GgufFile::find_bools(std::string_view key) const {
  return find_array<bool>(*this, key, bool_at, "an array of booleans");
}

std::string_view GgufFile::get_string(std::string_view key) const {
  return required(*this, key, find_string(key));
}

int64_t GgufFile::get_int(std::string_view key) const {
  return required(*this, key, find_int(key));
}

double GgufFile::get_float(std::string_view key) const {
  return required(*this, key, find_float(key));
}

}  // namespace coppice
