#include "coppice/core/stored_tensor.h"

#include <array>

namespace coppice {
namespace {

// In the order of StorageType. K types hold 256 values a block, the older ones 32.
constexpr std::array<StorageTraits, 14> kTraits = {{
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"BF16", 1, 2},
    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},
    {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},
    {"Q8_0", 32, 34},
    {"Q2_K", 256, 84},
    {"Q3_K", 256, 110},
    {"Q4_K", 256, 144},
    {"Q5_K", 256, 176},
    {"Q6_K", 256, 210},
    {"IQ4_NL", 32, 18},
}};

}  // namespace

const StorageTraits& storage_traits(StorageType type) {
  return kTraits[static_cast<std::size_t>(type)];
}

int64_t StoredTensor::rows() const {
  int64_t product = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) product *= shape[i];
  return product;
}

int64_t StoredTensor::row_bytes() const {
  const StorageTraits& traits = storage_traits(type);
  return cols() / traits.block_values * traits.block_bytes;
}

}  // namespace coppice
