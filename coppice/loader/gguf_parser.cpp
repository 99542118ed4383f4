// Parsing of GGUF files; gguf_file.h draws the layout.
#include <algorithm>
#include <array>
#include <bit>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/loader/byte_reader.h"
#include "coppice/loader/gguf_file.h"

namespace coppice {
namespace {

constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMaxNameBytes = 65535;
constexpr uint32_t kMinAlignment = 8;
constexpr uint32_t kMaxAlignment = 65536;
// The smallest metadata entry: a key of one byte with a value of one byte. The smallest tensor
// info: a name of one byte and no dimension. Counts that cannot fit are refused before anything is
// read.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 4 + 8;

// The numbers of the file format for the types we read.
struct TypeNumber {
  uint32_t number;
  StorageType type;
};
constexpr std::array<TypeNumber, 14> kTypeNumbers = {{
    {0, StorageType::kF32},
    {1, StorageType::kF16},
    {2, StorageType::kQ4_0},
    {3, StorageType::kQ4_1},
    {6, StorageType::kQ5_0},
    {7, StorageType::kQ5_1},
    {8, StorageType::kQ8_0},
    {10, StorageType::kQ2_K},
    {11, StorageType::kQ3_K},
    {12, StorageType::kQ4_K},
    {13, StorageType::kQ5_K},
    {14, StorageType::kQ6_K},
    {20, StorageType::kIQ4_NL},
    {30, StorageType::kBF16},
}};

// Size of one value of a fixed-size type; 0 for strings, arrays and unknown types.
std::size_t value_size(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

}  // namespace

class GgufParser final {
 public:
  GgufParser(std::span<const std::byte> bytes, std::shared_ptr<const void> owner, std::string what)
      : reader_(bytes, what) {
    file_.bytes_ = bytes;
    file_.owner_ = std::move(owner);
    file_.what_ = std::move(what);
  }

  GgufFile run() {
    read_header();
    read_metadata();
    check_parts();
    const uint32_t alignment = read_alignment();
    read_tensor_infos();
    place_tensors(alignment);
    return std::move(file_);
  }

 private:
  void read_header() {
    const std::string_view magic = reader_.text(4, "the magic");
    if (magic != "GGUF") {
      fail_argument("{}: not a GGUF file: it does not start with \"GGUF\"", file_.what_);
    }
    const auto version = reader_.read<uint32_t>("the version");
    if (version != 0 && (version & 0xFFFF) == 0) {
      fail_argument("{}: a big-endian GGUF file; only little-endian files can be read",
                    file_.what_);
    }
    if (version != 2 && version != 3) {
      fail_argument("{}: GGUF version {} is not supported; expected 2 or 3", file_.what_, version);
    }
    file_.version_ = version;
    tensor_count_ = reader_.read<uint64_t>("the tensor count");
    metadata_count_ = reader_.read<uint64_t>("the metadata count");
    if (metadata_count_ > reader_.left() / kMinEntryBytes) {
      fail_argument("{}: claims {} metadata entries, more than its {} bytes can hold", file_.what_,
                    metadata_count_, file_.bytes_.size());
    }
    if (tensor_count_ > reader_.left() / kMinTensorBytes) {
      fail_argument("{}: claims {} tensors, more than its {} bytes can hold", file_.what_,
                    tensor_count_, file_.bytes_.size());
    }
  }

  std::string_view read_name(std::string_view field) {
    const auto length = reader_.read<uint64_t>(field);
    if (length == 0) fail_argument("{}: {} is empty", file_.what_, field);
    if (length > kMaxNameBytes) {
      fail_argument("{}: {} claims {} bytes; at most {} are allowed", file_.what_, field, length,
                    kMaxNameBytes);
    }
    return reader_.text(length, field);
  }

  void read_metadata() {
    for (uint64_t i = 0; i < metadata_count_; ++i) {
      const std::string_view key = read_name("a metadata key");
      const GgufValue value = read_value(key);
      if (!file_.metadata_index_.emplace(key, file_.metadata_.size()).second) {
        fail_argument("{}: the metadata key \"{}\" stands twice", file_.what_, key);
      }
      file_.metadata_.emplace_back(key, value);
    }
  }

  GgufType read_type(std::string_view key) {
    const auto number = reader_.read<uint32_t>(key);
    if (number > static_cast<uint32_t>(GgufType::kFloat64)) {
      fail_argument("{}: {} has the unknown value type {}", file_.what_, key, number);
    }
    return static_cast<GgufType>(number);
  }

  GgufValue read_value(std::string_view key) {
    GgufValue value;
    value.type = value.element = read_type(key);
    if (value.type == GgufType::kArray) {
      value.element = read_type(key);
      value.count = reader_.read<uint64_t>(key);
      value.bytes = read_elements(key, value.element, value.count);
    } else if (value.type == GgufType::kString) {
      value.bytes = reader_.take(reader_.read<uint64_t>(key), key);
    } else {
      value.bytes = read_elements(key, value.element, 1);
    }
    return value;
  }

  std::span<const std::byte> read_elements(std::string_view key, GgufType type, uint64_t count) {
    if (type == GgufType::kArray) {
      fail_argument("{}: {} is an array of arrays, which is not supported", file_.what_, key);
    }
    if (type == GgufType::kString) return read_strings(key, count);
    const std::size_t size = value_size(type);
    if (count > reader_.left() / size) {
      fail_argument("{}: {} claims {} values of {} bytes, but only {} bytes are left", file_.what_,
                    key, count, size, reader_.left());
    }
    const auto bytes = reader_.take(count * size, key);
    const auto is_bool = [](std::byte b) { return b <= std::byte{1}; };
    if (type == GgufType::kBool && !std::all_of(bytes.begin(), bytes.end(), is_bool)) {
      fail_argument("{}: {} holds a boolean that is neither 0 nor 1", file_.what_, key);
    }
    return bytes;
  }

  std::span<const std::byte> read_strings(std::string_view key, uint64_t count) {
    if (count > reader_.left() / sizeof(uint64_t)) {
      fail_argument("{}: {} claims {} strings, but only {} bytes are left", file_.what_, key, count,
                    reader_.left());
    }
    const std::size_t begin = reader_.position();
    for (uint64_t i = 0; i < count; ++i) reader_.take(reader_.read<uint64_t>(key), key);
    return file_.bytes_.subspan(begin, reader_.position() - begin);
  }

  void check_parts() const {
    const std::optional<int64_t> parts = file_.find_int("split.count");
    if (parts && *parts > 1) {
      fail_argument(
          "{}: is one of {} parts of a split model; join them into one file first "
          "(llama-gguf-split --merge)",
          file_.what_, *parts);
    }
  }

  uint32_t read_alignment() const {
    constexpr std::string_view kKey = "general.alignment";
    const GgufValue* value = file_.find(kKey);
    if (!value) return 32;
    if (value->type != GgufType::kUint32) {
      fail_argument("{}: {} must be of type uint32, got {}", file_.what_, kKey,
                    gguf_type_name(value->type));
    }
    const auto alignment = static_cast<uint64_t>(*file_.find_int(kKey));
    if (!std::has_single_bit(alignment) || alignment < kMinAlignment || alignment > kMaxAlignment) {
      fail_argument("{}: {} must be a power of two from {} to {}, got {}", file_.what_, kKey,
                    kMinAlignment, kMaxAlignment, alignment);
    }
    return static_cast<uint32_t>(alignment);
  }

  StorageType storage_type(uint32_t number, std::string_view name) const {
    std::string supported;
    for (const TypeNumber& known : kTypeNumbers) {
      if (known.number == number) return known.type;
      supported +=
          fmt::format("{}{}", supported.empty() ? "" : ", ", storage_traits(known.type).name);
    }
    fail_argument("{}: tensor {} has type number {}, which is not supported; supported are {}",
                  file_.what_, name, number, supported);
  }

  void read_tensor_infos() {
    file_.tensors_.reserve(tensor_count_);
    offsets_.reserve(tensor_count_);
    for (uint64_t i = 0; i < tensor_count_; ++i) {
      const std::string_view name = read_name("a tensor name");
      StoredTensor tensor;
      tensor.name = std::string(name);
      const auto dims = reader_.read<uint32_t>(name);
      if (dims > kMaxDims) {
        fail_argument("{}: tensor {} has {} dimensions; at most {} are allowed", file_.what_, name,
                      dims, kMaxDims);
      }
      for (uint32_t d = 0; d < dims; ++d) {
        const auto size = reader_.read<uint64_t>(name);
        if (size == 0 || size > static_cast<uint64_t>(INT64_MAX)) {
          fail_argument("{}: tensor {} has a dimension of {}", file_.what_, name, size);
        }
        tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
      }
      tensor.type = storage_type(reader_.read<uint32_t>(name), name);
      offsets_.push_back(reader_.read<uint64_t>(name));
      if (!file_.tensor_index_.emplace(name, file_.tensors_.size()).second) {
        fail_argument("{}: the tensor {} stands twice", file_.what_, name);
      }
      file_.tensors_.push_back(std::move(tensor));
    }
  }

  // Bytes of a tensor, with every product checked.
  uint64_t tensor_bytes(const StoredTensor& tensor) const {
    const StorageTraits& traits = storage_traits(tensor.type);
    if (tensor.cols() % traits.block_values != 0) {
      fail_argument("{}: tensor {} of type {} has rows of {} values, not a multiple of {}",
                    file_.what_, tensor.name, traits.name, tensor.cols(), traits.block_values);
    }
    int64_t size = 0;
    bool wraps =
        __builtin_mul_overflow(tensor.cols() / traits.block_values, traits.block_bytes, &size);
    int64_t values = tensor.cols();
    for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
      wraps = wraps || __builtin_mul_overflow(size, tensor.shape[i], &size) ||
              __builtin_mul_overflow(values, tensor.shape[i], &values);
    }
    if (wraps) {
      fail_argument("{}: tensor {} of shape [{}] is larger than any file", file_.what_, tensor.name,
                    fmt::join(tensor.shape, ", "));
    }
    return static_cast<uint64_t>(size);
  }

  void place_tensors(uint32_t alignment) {
    const std::size_t begin = (reader_.position() + alignment - 1) / alignment * alignment;
    const std::size_t available = file_.bytes_.size() > begin ? file_.bytes_.size() - begin : 0;
    for (std::size_t i = 0; i < file_.tensors_.size(); ++i) {
      StoredTensor& tensor = file_.tensors_[i];
      const uint64_t size = tensor_bytes(tensor);
      const uint64_t offset = offsets_[i];
      if (offset % alignment != 0) {
        fail_argument("{}: tensor {} starts at offset {}, not a multiple of the alignment {}",
                      file_.what_, tensor.name, offset, alignment);
      }
      if (offset > available || size > available - offset) {
        fail_argument(
            "{}: tensor {} needs {} bytes at offset {} of the data, but the file holds only {} "
            "bytes of data: it is cut off or damaged",
            file_.what_, tensor.name, size, offset, available);
      }
      tensor.bytes = file_.bytes_.subspan(begin + static_cast<std::size_t>(offset),
                                          static_cast<std::size_t>(size));
      tensor.owner = file_.owner_;
    }
    check_overlap();
  }

  void check_overlap() const {
    std::vector<const StoredTensor*> order;
    for (const StoredTensor& tensor : file_.tensors_) order.push_back(&tensor);
    const auto address = [](const StoredTensor* t) { return t->bytes.data(); };
    std::ranges::sort(order, {}, address);
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (static_cast<std::size_t>(address(order[i]) - address(order[i - 1])) <
          order[i - 1]->bytes.size()) {
        fail_argument("{}: the data of the tensors {} and {} overlap", file_.what_,
                      order[i - 1]->name, order[i]->name);
      }
    }
  }

  ByteReader reader_;
  GgufFile file_;
  uint64_t tensor_count_ = 0;
  uint64_t metadata_count_ = 0;
  std::vector<uint64_t> offsets_;  // per tensor, relative to the data
};

GgufFile GgufFile::parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                         std::string what) {
  return GgufParser(bytes, std::move(owner), std::move(what)).run();
}

GgufFile GgufFile::open(const std::string& path) {
  const MappedFile file = MappedFile::open(path);
  return parse(file.bytes(), file.owner(), path);
}

}  // namespace coppice
