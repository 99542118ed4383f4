#include "coppice/ops/packed_codes.h"

#include <array>
#include <cstring>

#include "coppice/core/error.h"
#include "coppice/ops/packed_float.h"

namespace coppice::ops {
namespace {

constexpr int kSuperBlock = 256;  // values of a K type's block
constexpr std::array<int8_t, 16> kIq4Nl = {-127, -104, -83, -65, -49, -35, -22, -10,
                                           1,    13,   25,  38,  53,  69,  89,  113};

float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return half_to_float(bits);
}

// Value j < 16 of a block of 32 sits in the low half of byte j, value j + 16 in its high half.
void unpack_nibbles(const uint8_t* packed, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = packed[j] & 15;
    codes[j + 16] = packed[j] >> 4;
  }
}

// Bit j of the 32-bit word at `high` is bit 4 of code j.
void add_fifth_bit(const uint8_t* high, uint8_t* codes) {
  for (int j = 0; j < 32; ++j) {
    codes[j] = static_cast<uint8_t>(codes[j] | (((high[j / 8] >> (j % 8)) & 1) << 4));
  }
}

// One block of 32: writes 32 codes, one scale and, where the type has it, one minimum.
void unpack_block32(StorageType type, const uint8_t* p, uint8_t* codes, float* scale,
                    float* minimum) {
  *scale = half_at(p);
  switch (type) {
    case StorageType::kQ4_0:
      unpack_nibbles(p + 2, codes);
      break;
    case StorageType::kQ4_1:
      *minimum = half_at(p + 2);
      unpack_nibbles(p + 4, codes);
      break;
    case StorageType::kQ5_0:
      unpack_nibbles(p + 6, codes);
      add_fifth_bit(p + 2, codes);
      for (int j = 0; j < 32; ++j) codes[j] = static_cast<uint8_t>(codes[j] + 112);
      break;
    case StorageType::kQ5_1:
      *minimum = half_at(p + 2);
      unpack_nibbles(p + 8, codes);
      add_fifth_bit(p + 4, codes);
      break;
    case StorageType::kIQ4_NL:
      unpack_nibbles(p + 2, codes);
      for (int j = 0; j < 32; ++j) codes[j] = static_cast<uint8_t>(kIq4Nl[codes[j]] + 128);
      break;
    default:  // Q8_0
      for (int j = 0; j < 32; ++j) codes[j] = p[2 + j] ^ 0x80;
      break;
  }
}

struct ScaleMin {
  int scale;
  int minimum;
};

// Eight pairs of 6 bits in 12 bytes (Q4_K, Q5_K): pairs 0 to 3 lie in the low bits of bytes 0 to 7,
// pairs 4 to 7 in the halves of bytes 8 to 11 with their top bits in bytes 0 to 7.
ScaleMin scale_min6(const uint8_t* p, int j) {
  if (j < 4) return {p[j] & 63, p[j + 4] & 63};
  return {(p[j + 4] & 15) | ((p[j - 4] >> 6) << 4), (p[j + 4] >> 4) | ((p[j] >> 6) << 4)};
}

// Sixteen scales of 6 bits in 12 bytes (Q3_K).
int scale6(const uint8_t* p, int j) {
  const int low = j < 8 ? p[j] & 15 : p[j - 8] >> 4;
  return low | (((p[8 + j % 4] >> (2 * (j / 4))) & 3) << 4);
}

void unpack_q2_k(const uint8_t* p, uint8_t* codes, float* scales, float* minimums) {
  const float d = half_at(p + 80), dmin = half_at(p + 82);
  for (int g = 0; g < 16; ++g) {
    scales[g] = d * static_cast<float>(p[g] & 15);
    minimums[g] = -dmin * static_cast<float>(p[g] >> 4);
  }
  for (int i = 0; i < kSuperBlock; ++i) {
    codes[i] = (p[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
  }
}

void unpack_q3_k(const uint8_t* p, uint8_t* codes, float* scales) {
  const float d = half_at(p + 108);
  for (int g = 0; g < 16; ++g) scales[g] = d * static_cast<float>(scale6(p + 96, g) - 32);
  for (int i = 0; i < kSuperBlock; ++i) {
    const int low = (p[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
    const int high = (p[i % 32] >> (i / 32)) & 1;
    codes[i] = static_cast<uint8_t>((low | (high << 2)) + 4);  // middle of 4 bits
  }
}

void unpack_q4_k(const uint8_t* p, uint8_t* codes, float* scales, float* minimums) {
  const float d = half_at(p), dmin = half_at(p + 2);
  for (int g = 0; g < 8; ++g) {
    const ScaleMin pair = scale_min6(p + 4, g);
    scales[g] = d * static_cast<float>(pair.scale);
    minimums[g] = -dmin * static_cast<float>(pair.minimum);
    const uint8_t* q = p + 16 + g / 2 * 32;
    for (int j = 0; j < 32; ++j) codes[g * 32 + j] = g % 2 == 0 ? q[j] & 15 : q[j] >> 4;
  }
}

void unpack_q5_k(const uint8_t* p, uint8_t* codes, float* scales, float* minimums) {
  const float d = half_at(p), dmin = half_at(p + 2);
  for (int g = 0; g < 8; ++g) {
    const ScaleMin pair = scale_min6(p + 4, g);
    scales[g] = d * static_cast<float>(pair.scale);
    minimums[g] = -dmin * static_cast<float>(pair.minimum);
    const uint8_t* q = p + 48 + g / 2 * 32;
    for (int j = 0; j < 32; ++j) {
      const int low = g % 2 == 0 ? q[j] & 15 : q[j] >> 4;
      codes[g * 32 + j] = static_cast<uint8_t>(low | (((p[16 + j] >> g) & 1) << 4));
    }
  }
}

void unpack_q6_k(const uint8_t* p, uint8_t* codes, float* scales) {
  const float d = half_at(p + 208);
  for (int g = 0; g < 16; ++g) scales[g] = d * static_cast<float>(static_cast<int8_t>(p[192 + g]));
  for (int i = 0; i < kSuperBlock; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, j = i % 32;
    const uint8_t low = p[half * 64 + quarter % 2 * 32 + j];
    const int bits = (quarter < 2 ? low & 15 : low >> 4) |
                     (((p[128 + half * 32 + j] >> (2 * quarter)) & 3) << 4);
    codes[i] = static_cast<uint8_t>(bits + 96);  // middle of 8 bits
  }
}

void unpack_super_block(StorageType type, const uint8_t* p, uint8_t* codes, float* scales,
                        float* minimums) {
  switch (type) {
    case StorageType::kQ2_K:
      return unpack_q2_k(p, codes, scales, minimums);
    case StorageType::kQ3_K:
      return unpack_q3_k(p, codes, scales);
    case StorageType::kQ4_K:
      return unpack_q4_k(p, codes, scales, minimums);
    case StorageType::kQ5_K:
      return unpack_q5_k(p, codes, scales, minimums);
    default:
      return unpack_q6_k(p, codes, scales);
  }
}

}  // namespace

bool is_quantised(StorageType type) { return storage_traits(type).block_values > 1; }

CodeShape code_shape(StorageType type) {
  switch (type) {
    case StorageType::kQ4_0:
      return {4, 32, false};
    case StorageType::kQ4_1:
      return {4, 32, true};
    case StorageType::kQ4_K:
      return {4, 32, true};
    case StorageType::kQ2_K:
      return {4, 16, true};
    case StorageType::kQ3_K:
      return {4, 16, false};
    case StorageType::kQ5_0:
      return {8, 32, false};
    case StorageType::kQ5_1:
      return {8, 32, true};
    case StorageType::kQ8_0:
      return {8, 32, false};
    case StorageType::kIQ4_NL:
      return {8, 32, false};
    case StorageType::kQ5_K:
      return {8, 32, true};
    case StorageType::kQ6_K:
      return {8, 16, false};
    default:
      break;
  }
  fail_argument("codes: {} holds plain values, not codes", storage_traits(type).name);
}

void unpack_codes(StorageType type, std::span<const std::byte> row, const CodeRow& out) {
  const StorageTraits& traits = storage_traits(type);
  const CodeShape shape = code_shape(type);
  const std::size_t values = static_cast<std::size_t>(traits.block_values);
  const std::size_t blocks = out.codes.size() / values;
  const std::size_t groups = out.codes.size() / static_cast<std::size_t>(shape.group);
  if (out.codes.size() % values != 0 ||
      row.size() != blocks * static_cast<std::size_t>(traits.block_bytes) ||
      out.scales.size() != groups || out.minimums.size() != (shape.has_minimum ? groups : 0)) {
    fail_argument("codes of {}: {} bytes do not fit {} values, {} scales, {} minimums", traits.name,
                  row.size(), out.codes.size(), out.scales.size(), out.minimums.size());
  }
  const auto* p = reinterpret_cast<const uint8_t*>(row.data());
  const std::size_t groups_per_block = values / static_cast<std::size_t>(shape.group);
  for (std::size_t b = 0; b < blocks; ++b) {
    uint8_t* codes = out.codes.data() + b * values;
    float* scales = out.scales.data() + b * groups_per_block;
    float* minimums = shape.has_minimum ? out.minimums.data() + b * groups_per_block : nullptr;
    if (values == kSuperBlock) {
      unpack_super_block(type, p, codes, scales, minimums);
    } else {
      unpack_block32(type, p, codes, scales, minimums);
    }
    p += traits.block_bytes;
  }
}

float largest_scale_bound(StorageType type, std::span<const std::byte> blocks) {
  struct Place {
    std::size_t scale, minimum;  // offsets of the float16 values in a block; equal when only one
    float factor;                // the largest whole number that multiplies them
  };
  const Place place = [&]() -> Place {
    switch (type) {
      case StorageType::kQ2_K:
        return {80, 82, 15.0f};
      case StorageType::kQ3_K:
        return {108, 108, 32.0f};
      case StorageType::kQ4_K:
      case StorageType::kQ5_K:
        return {0, 2, 63.0f};
      case StorageType::kQ6_K:
        return {208, 208, 128.0f};
      default:
        break;
    }
    fail_argument("scales: {} is not a K type", storage_traits(type).name);
  }();
  const auto size = static_cast<std::size_t>(storage_traits(type).block_bytes);
  if (blocks.size() % size != 0) {
    fail_argument("scales: {} bytes are no whole blocks of {}", blocks.size(), size);
  }
  uint16_t largest = 0;  // magnitudes of float16 are ordered as their bits
  for (std::size_t at = 0; at < blocks.size(); at += size) {
    for (const std::size_t offset : {place.scale, place.minimum}) {
      uint16_t bits;
      std::memcpy(&bits, blocks.data() + at + offset, sizeof(bits));
      bits &= 0x7fff;
      if (bits < 0x7c00 && bits > largest) largest = bits;
    }
  }
  return half_to_float(largest) * place.factor;
}

}  // namespace coppice::ops
