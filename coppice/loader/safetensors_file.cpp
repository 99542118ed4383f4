#include "coppice/loader/safetensors_file.h"

#include <algorithm>
#include <array>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/core/mapped_file.h"
#include "coppice/loader/byte_reader.h"

namespace coppice {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";

struct Dtype {
  std::string_view name;
  uint64_t bits;
};
constexpr std::array<Dtype, 20> kDtypes = {{
    {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
    {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
    {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

std::optional<uint64_t> dtype_bits(std::string_view name) {
  const auto at = std::ranges::find(kDtypes, name, &Dtype::name);
  if (at == kDtypes.end()) return std::nullopt;
  return at->bits;
}

// Bytes of a tensor; nullopt when the size wraps or is no whole number of bytes.
std::optional<uint64_t> tensor_bytes(uint64_t bits, std::span<const int64_t> shape) {
  uint64_t size = bits;
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(size, static_cast<uint64_t>(dim), &size)) return std::nullopt;
  }
  if (size % 8 != 0) return std::nullopt;
  return size / 8;
}

// A JSON number that counts something. Signs, fractions and exponents are refused.
int64_t read_count(const Json& value, std::string_view file, std::string_view name,
                   std::string_view field) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    fail_argument("{}: {} of tensor {} must hold non-negative integers, got {}", file, field, name,
                  dump_json(value));
  }
  return value.get<int64_t>();
}

const Json& member(const Json& object, const char* key, std::string_view file,
                   std::string_view name) {
  const auto at = object.find(key);
  if (at == object.end()) fail_argument("{}: tensor {} has no {}", file, name, key);
  return *at;
}

struct Span {
  uint64_t begin, end;
};

// One header entry but for its bytes; returns its span of the data.
Span read_entry(const Json& info, std::string_view file, SafetensorsEntry& entry) {
  const std::string& name = entry.name;
  if (!info.is_object()) fail_argument("{}: the entry of tensor {} is not an object", file, name);
  const Json& dtype = member(info, "dtype", file, name);
  const Json& shape = member(info, "shape", file, name);
  const Json& offsets = member(info, "data_offsets", file, name);
  if (!dtype.is_string() || !dtype_bits(dtype.get_ref<const std::string&>())) {
    fail_argument("{}: tensor {} has the unknown dtype {}", file, name, dump_json(dtype));
  }
  entry.dtype = dtype.get<std::string>();
  if (!shape.is_array()) fail_argument("{}: the shape of tensor {} is not a list", file, name);
  for (const Json& dim : shape) entry.shape.push_back(read_count(dim, file, name, "the shape"));
  if (!offsets.is_array() || offsets.size() != 2) {
    fail_argument("{}: data_offsets of tensor {} must be two integers, got {}", file, name,
                  dump_json(offsets));
  }
  const auto begin = static_cast<uint64_t>(read_count(offsets[0], file, name, "data_offsets"));
  const auto end = static_cast<uint64_t>(read_count(offsets[1], file, name, "data_offsets"));
  if (end < begin) {
    fail_argument("{}: data_offsets of tensor {} are reversed: [{}, {}]", file, name, begin, end);
  }
  const auto needed = tensor_bytes(*dtype_bits(entry.dtype), entry.shape);
  if (!needed || *needed != end - begin) {
    fail_argument("{}: tensor {} of {} [{}] needs {} bytes, but its data_offsets span {}", file,
                  name, entry.dtype, fmt::join(entry.shape, ", "),
                  needed ? fmt::format("{}", *needed) : "an impossible number of", end - begin);
  }
  return {begin, end};
}

std::map<std::string, std::string> read_metadata(const Json& value, std::string_view file) {
  std::map<std::string, std::string> result;
  if (!value.is_object()) fail_argument("{}: {} is not an object", file, kMetadataKey);
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      fail_argument("{}: {} \"{}\" must be a text, got {}", file, kMetadataKey, key,
                    dump_json(text));
    }
    result.emplace(key, text.get<std::string>());
  }
  return result;
}

}  // namespace

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes,
                                       std::shared_ptr<const void> owner, std::string what) {
  SafetensorsFile file;
  file.bytes_ = bytes;
  file.owner_ = std::move(owner);
  file.what_ = std::move(what);
  ByteReader reader(bytes, file.what_);
  const auto header_bytes = reader.read<uint64_t>("the header length");
  if (header_bytes > kMaxHeaderBytes) {
    fail_argument("{}: claims a header of {} bytes; at most {} are allowed", file.what_,
                  header_bytes, kMaxHeaderBytes);
  }
  const std::string_view text = reader.text(header_bytes, "the header");
  if (!text.starts_with('{')) {
    fail_argument("{}: not a safetensors file: its header does not start with '{{'", file.what_);
  }
  const Json header = parse_json(text, file.what_ + ": the header",
                                 {.max_depth = 8, .reject_duplicate_keys = true});

  const std::span<const std::byte> data = bytes.subspan(reader.position());
  std::vector<std::pair<Span, SafetensorsEntry>> found;
  for (const auto& [name, info] : header.items()) {
    if (name == kMetadataKey) {
      file.metadata_ = read_metadata(info, file.what_);
      continue;
    }
    SafetensorsEntry entry;
    entry.name = name;
    const Span span = read_entry(info, file.what_, entry);
    found.emplace_back(span, std::move(entry));
  }
  std::ranges::sort(found, [](const auto& a, const auto& b) {
    return std::tie(a.first.begin, a.first.end, a.second.name) <
           std::tie(b.first.begin, b.first.end, b.second.name);
  });
  uint64_t covered = 0;
  for (auto& [span, entry] : found) {
    if (span.begin != covered) {
      fail_argument("{}: the data of tensor {} start at {}, but those before it end at {}: {}",
                    file.what_, entry.name, span.begin, covered,
                    span.begin < covered ? "spans overlap" : "there is a hole");
    }
    if (span.end > data.size()) {
      fail_argument("{}: tensor {} ends at byte {} of the data, but there are only {}: cut off",
                    file.what_, entry.name, span.end, data.size());
    }
    covered = span.end;
    entry.bytes = data.subspan(span.begin, span.end - span.begin);
    file.index_.emplace(entry.name, file.entries_.size());
    file.entries_.push_back(std::move(entry));
  }
  if (covered != data.size()) {
    fail_argument("{}: the tensors cover {} bytes, but there are {} bytes of data", file.what_,
                  covered, data.size());
  }
  return file;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  const MappedFile file = MappedFile::open(path);
  return parse(file.bytes(), file.owner(), path);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = index_.find(std::string(name));
  return at == index_.end() ? nullptr : &entries_[at->second];
}

StoredTensor SafetensorsFile::weight(const SafetensorsEntry& entry) const {
  const auto type = weight_type_of_dtype(entry.dtype);
  if (!type) {
    fail_argument(
        "{}: tensor {} has dtype {}, which cannot be a weight here; expected F32, F16 or "
        "BF16",
        what_, entry.name, entry.dtype);
  }
  if (entry.bytes.empty()) {
    fail_argument("{}: tensor {} of shape [{}] holds no values", what_, entry.name,
                  fmt::join(entry.shape, ", "));
  }
  StoredTensor tensor;
  tensor.name = entry.name;
  tensor.type = *type;
  tensor.shape = entry.shape;
  tensor.bytes = entry.bytes;
  tensor.owner = owner_;
  return tensor;
}

std::optional<StorageType> weight_type_of_dtype(std::string_view dtype) {
  if (dtype == "F32") return StorageType::kF32;
  if (dtype == "F16") return StorageType::kF16;
  if (dtype == "BF16") return StorageType::kBF16;
  return std::nullopt;
}

std::string_view dtype_of_weight_type(StorageType type) {
  COPPICE_CHECK(storage_traits(type).block_values == 1, "{} is no safetensors dtype",
                storage_traits(type).name);
  return storage_traits(type).name;
}

void write_safetensors(const std::string& path, std::vector<SafetensorsEntry> entries,
                       const std::map<std::string, std::string>& metadata) {
  for (const SafetensorsEntry& entry : entries) {
    const auto bits = dtype_bits(entry.dtype);
    const bool negative = std::ranges::any_of(entry.shape, [](int64_t dim) { return dim < 0; });
    if (!bits || negative || tensor_bytes(*bits, entry.shape) != entry.bytes.size()) {
      fail_argument("{}: tensor {} of {} [{}] does not fit its {} bytes", path, entry.name,
                    entry.dtype, fmt::join(entry.shape, ", "), entry.bytes.size());
    }
    if (entry.name == kMetadataKey)
      fail_argument("{}: a tensor cannot be named {}", path, entry.name);
  }
  std::ranges::sort(entries, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    const uint64_t wide_a = *dtype_bits(a.dtype), wide_b = *dtype_bits(b.dtype);
    return wide_a != wide_b ? wide_a > wide_b : a.name < b.name;
  });
  Json header = Json::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  uint64_t offset = 0;
  std::vector<std::span<const std::byte>> parts(2);
  for (const SafetensorsEntry& entry : entries) {
    if (header.contains(entry.name)) fail_argument("{}: tensor {} stands twice", path, entry.name);
    header[entry.name] = {{"dtype", entry.dtype},
                          {"shape", entry.shape},
                          {"data_offsets", {offset, offset + entry.bytes.size()}}};
    offset += entry.bytes.size();
    parts.push_back(entry.bytes);
  }
  std::string text = dump_json(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  parts[0] = std::as_bytes(std::span(&length, 1));
  parts[1] = std::as_bytes(std::span(text));
  write_file_atomically(path, parts);
}

}  // namespace coppice
