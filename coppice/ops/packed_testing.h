// What tests of packed matrices share: weights of every storage type made of random bits, rows of
// x, and a way to run at every level of the processor.
#pragma once

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "coppice/core/rng.h"
#include "coppice/core/stored_tensor.h"
#include "coppice/ops/cpu_features.h"
#include "coppice/ops/packed_codes.h"
#include "coppice/ops/packed_float.h"

namespace coppice::ops {

inline constexpr StorageType kAllTypes[] = {
    StorageType::kF32,  StorageType::kF16,   StorageType::kBF16, StorageType::kQ4_0,
    StorageType::kQ4_1, StorageType::kQ5_0,  StorageType::kQ5_1, StorageType::kQ8_0,
    StorageType::kQ2_K, StorageType::kQ3_K,  StorageType::kQ4_K, StorageType::kQ5_K,
    StorageType::kQ6_K, StorageType::kIQ4_NL};

// Offsets of the float16 numbers of a block.
inline std::vector<int64_t> half_offsets(StorageType type) {
  switch (type) {
    case StorageType::kQ4_0:
    case StorageType::kQ5_0:
    case StorageType::kQ8_0:
    case StorageType::kIQ4_NL:
      return {0};
    case StorageType::kQ4_1:
    case StorageType::kQ5_1:
    case StorageType::kQ4_K:
    case StorageType::kQ5_K:
      return {0, 2};
    case StorageType::kQ2_K:
      return {80, 82};
    case StorageType::kQ3_K:
      return {108};
    case StorageType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

inline void put_half(std::vector<std::byte>& bytes, std::size_t at, float value) {
  const uint16_t bits = float_to_half(value);
  std::memcpy(bytes.data() + at, &bits, sizeof(bits));
}

// Random bits, with scales of random sign and a magnitude around `size`.
struct RandomTensor {
  std::vector<std::byte> bytes;
  StoredTensor stored;

  RandomTensor(StorageType type, int64_t rows, int64_t cols, uint64_t seed, float size = 0.01f) {
    Rng rng(seed);
    const auto random = [&] {
      return size * static_cast<float>(rng.uniform() + 0.25) * (rng.below(2) == 0 ? 1.0f : -1.0f);
    };
    stored.name = "random";
    stored.type = type;
    stored.shape = {rows, cols};
    bytes.resize(static_cast<std::size_t>(rows * stored.row_bytes()));
    const auto block = static_cast<std::size_t>(storage_traits(type).block_bytes);
    for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = std::byte(rng.below(256));
    for (std::size_t at = 0; at < bytes.size(); at += block) {
      for (const int64_t offset : half_offsets(type)) {
        put_half(bytes, at + static_cast<std::size_t>(offset), random());
      }
      if (is_quantised(type)) continue;
      const float value = random();
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      const uint16_t high = static_cast<uint16_t>(bits >> 16);
      if (type == StorageType::kF32) std::memcpy(bytes.data() + at, &bits, 4);
      if (type == StorageType::kBF16) std::memcpy(bytes.data() + at, &high, 2);
      if (type == StorageType::kF16) put_half(bytes, at, value);
    }
    stored.bytes = bytes;
  }
};

// Runs a test body at every level that this processor has.
template <typename Fn>
void at_every_level(const Fn& fn) {
  const CpuLevel before = cpu_level();
  for (int i = 0; i <= static_cast<int>(detected_cpu_level()); ++i) {
    const auto level = static_cast<CpuLevel>(i);
    SCOPED_TRACE(std::string(cpu_level_name(level)));
    set_cpu_level(level);
    fn();
  }
  set_cpu_level(before);
}

inline at::Tensor random_rows(int64_t n, int64_t cols, uint64_t seed) {
  at::Tensor x = at::empty({n, cols}, at::kFloat);
  Rng rng(seed);
  float* p = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < n * cols; ++i) {
    p[i] = static_cast<float>((rng.uniform() - 0.5) * (rng.below(16) == 0 ? 8.0 : 1.0));
  }
  return x;
}

inline float largest_magnitude(const at::Tensor& t) {
  float largest = 0.0f;
  const float* p = t.const_data_ptr<float>();
  for (int64_t i = 0; i < t.numel(); ++i) largest = std::max(largest, std::fabs(p[i]));
  return largest;
}

}  // namespace coppice::ops
