// Conversions between float32 and the 16-bit formats, on raw bits and without special instructions.
// To 16 bits: round to nearest, ties to even; beyond the largest value becomes infinity; NaN stays.
#pragma once

#include <bit>
#include <cstdint>

namespace coppice::ops {

// These two are inlined everywhere, so that loops over them are compiled for the level of their
// caller, and have no branch.
[[gnu::always_inline]] inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

[[gnu::always_inline]] inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40u : rounded);
}

inline float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest >= 0x400u) return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
  const float magnitude = static_cast<float>(rest) * 0x1.0p-24f;  // subnormal or zero: exact
  return sign != 0 ? -magnitude : magnitude;
}

inline uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above
  if (rest < 0x38800000u) {  // below 2^-14: the sum's last bit is worth 2^-24
    const float sum = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3f000000u));
  }
  const uint32_t rounded = rest + 0xfffu + ((rest >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace coppice::ops
