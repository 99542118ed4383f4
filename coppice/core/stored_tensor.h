// A tensor as a model file stores it: a typed view of bytes that somebody else owns. The common
// ground between the file readers (loader/) and the code that unpacks and multiplies (ops/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

enum class StorageType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
};

struct StorageTraits {
  std::string_view name;  // "Q4_K", as GGUF tools print it
  int64_t block_values;   // values per block along a row; 1 for plain types
  int64_t block_bytes;    // bytes of one such block
};

const StorageTraits& storage_traits(StorageType type);

struct StoredTensor {
  std::string name;  // the checkpoint's own: "model.layers.0.self_attn.q_proj.weight"
  StorageType type = StorageType::kF32;
  std::vector<int64_t> shape;         // row-major, outermost first: [out, in] for a matrix
  std::span<const std::byte> bytes;   // exactly rows x row_bytes; not aligned to anything
  std::shared_ptr<const void> owner;  // keeps `bytes` alive

  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }  // values of one row
  int64_t rows() const;                                              // product of the other dims
  int64_t row_bytes() const;
};

}  // namespace coppice
