#include "coppice/ops/dequantize.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Half.h>

#include <array>
#include <bit>
#include <cstring>

#include "coppice/core/error.h"

namespace coppice::ops {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

constexpr int kSmall = 32;   // values in a block of the older types
constexpr int kSuper = 256;  // values in a block of the K types

uint16_t read_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | (p[1] << 8)); }

float read_f16(const uint8_t* p) { return c10::detail::fp16_ieee_to_fp32_value(read_u16(p)); }

float read_bf16(const uint8_t* p) {
  return std::bit_cast<float>(static_cast<uint32_t>(read_u16(p)) << 16);
}

uint32_t read_u32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// The older types split a block in two halves: byte j of the nibbles holds value j in its low half
// and value j + 16 in its high half.

// | scale f16 | 16 bytes of nibbles |: scale * (q - 8)
void unpack_q4_0(const uint8_t* p, float* out) {
  const float scale = read_f16(p);
  for (int j = 0; j < kSmall / 2; ++j) {
    out[j] = scale * static_cast<float>((p[2 + j] & 15) - 8);
    out[j + kSmall / 2] = scale * static_cast<float>((p[2 + j] >> 4) - 8);
  }
}

// | scale f16 | minimum f16 | 16 bytes of nibbles |: scale * q + minimum
void unpack_q4_1(const uint8_t* p, float* out) {
  const float scale = read_f16(p);
  const float minimum = read_f16(p + 2);
  for (int j = 0; j < kSmall / 2; ++j) {
    out[j] = scale * static_cast<float>(p[4 + j] & 15) + minimum;
    out[j + kSmall / 2] = scale * static_cast<float>(p[4 + j] >> 4) + minimum;
  }
}

// | scale f16 | fifth bits u32 | 16 bytes of nibbles |: scale * (q - 16); bit i belongs to value i
void unpack_q5_0(const uint8_t* p, float* out) {
  const float scale = read_f16(p);
  const uint32_t high = read_u32(p + 2);
  for (int j = 0; j < kSmall / 2; ++j) {
    const int low_half = (p[6 + j] & 15) | static_cast<int>((high >> j & 1) << 4);
    const int high_half = (p[6 + j] >> 4) | static_cast<int>((high >> (j + 16) & 1) << 4);
    out[j] = scale * static_cast<float>(low_half - 16);
    out[j + kSmall / 2] = scale * static_cast<float>(high_half - 16);
  }
}

// | scale f16 | minimum f16 | fifth bits u32 | 16 bytes of nibbles |: scale * q + minimum
void unpack_q5_1(const uint8_t* p, float* out) {
  const float scale = read_f16(p);
  const float minimum = read_f16(p + 2);
  const uint32_t high = read_u32(p + 4);
  for (int j = 0; j < kSmall / 2; ++j) {
    const int low_half = (p[8 + j] & 15) | static_cast<int>((high >> j & 1) << 4);
    const int high_half = (p[8 + j] >> 4) | static_cast<int>((high >> (j + 16) & 1) << 4);
    out[j] = scale * static_cast<float>(low_half) + minimum;
    out[j + kSmall / 2] = scale * static_cast<float>(high_half) + minimum;
  }
}

// | scale f16 | 32 signed bytes |
void unpack_q8_0(const uint8_t* p, float* out) {
  const float scale = read_f16(p);
  for (int j = 0; j < kSmall; ++j) {
    out[j] = scale * static_cast<float>(static_cast<int8_t>(p[2 + j]));
  }
}

// | scale f16 | 16 bytes of nibbles |, each nibble an index into a fixed non-linear grid
void unpack_iq4_nl(const uint8_t* p, float* out) {
  constexpr std::array<int8_t, 16> kGrid = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};
  const float scale = read_f16(p);
  for (int j = 0; j < kSmall / 2; ++j) {
    out[j] = scale * static_cast<float>(kGrid[p[2 + j] & 15]);
    out[j + kSmall / 2] = scale * static_cast<float>(kGrid[p[2 + j] >> 4]);
  }
}

// The K types split 256 values into sub-blocks of 16 or 32 with small integer scales of their own.
// Their 2-bit fields: byte 32 * n + i of `qs` holds, in bit pair s, value 128 * n + 32 * s + i.

// | 16 bytes: scale (low nibble) and minimum (high) per 16 values | 64 bytes of bit pairs |
// | scale f16 | minimum f16 |
void unpack_q2_k(const uint8_t* p, float* out) {
  const uint8_t* qs = p + 16;
  const float scale = read_f16(p + 80);
  const float minimum = read_f16(p + 82);
  for (int sub = 0; sub < 16; ++sub) {
    const float sub_scale = scale * static_cast<float>(p[sub] & 15);
    const float sub_minimum = minimum * static_cast<float>(p[sub] >> 4);
    const uint8_t* from = qs + sub / 8 * 32 + sub % 2 * 16;
    const int shift = sub % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) {
      out[sub * 16 + i] = sub_scale * static_cast<float>(from[i] >> shift & 3) - sub_minimum;
    }
  }
}

// | 32 bytes: third bits, bit v / 32 of byte v % 32 | 64 bytes of bit pairs |
// | 12 bytes: 16 scales of 6 bits, 4 low bits in bytes 0-7, 2 high bits in bytes 8-11 | scale f16 |
// A cleared third bit means minus 4.
void unpack_q3_k(const uint8_t* p, float* out) {
  const uint8_t* qs = p + 32;
  const uint8_t* scales = p + 96;
  const float scale = read_f16(p + 108);
  for (int sub = 0; sub < 16; ++sub) {
    const int low = scales[sub % 8] >> (sub / 8 * 4) & 15;
    const int high = scales[8 + sub % 4] >> (sub / 4 * 2) & 3;
    const float sub_scale = scale * static_cast<float>((low | high << 4) - 32);
    const uint8_t* from = qs + sub / 8 * 32 + sub % 2 * 16;
    const uint8_t* mask = p + sub % 2 * 16;
    const int shift = sub % 8 / 2 * 2;
    const int bit = sub / 2;
    for (int i = 0; i < 16; ++i) {
      const int q = (from[i] >> shift & 3) - ((mask[i] >> bit & 1) ? 0 : 4);
      out[sub * 16 + i] = sub_scale * static_cast<float>(q);
    }
  }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each stand in the low 6
// bits of bytes 0-3 and 4-7; the others have their low nibbles in bytes 8-11 (scale low, minimum
// high) and their top two bits in the top bits of bytes 0-3 and 4-7.
struct ScaleAndMinimum {
  int scale, minimum;
};
ScaleAndMinimum six_bit_pair(const uint8_t* p, int sub) {
  if (sub < 4) return {p[sub] & 63, p[sub + 4] & 63};
  return {(p[sub + 4] & 15) | (p[sub - 4] >> 6 << 4), (p[sub + 4] >> 4) | (p[sub] >> 6 << 4)};
}

// | scale f16 | minimum f16 | 12 bytes of 6-bit pairs | 128 bytes of nibbles |
// Byte 32 * n + i holds value 64 * n + i (low nibble) and 64 * n + 32 + i (high nibble).
void unpack_q4_k(const uint8_t* p, float* out) {
  const float scale = read_f16(p);
  const float minimum = read_f16(p + 2);
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleAndMinimum pair = six_bit_pair(p + 4, sub);
    const float sub_scale = scale * static_cast<float>(pair.scale);
    const float sub_minimum = minimum * static_cast<float>(pair.minimum);
    const uint8_t* from = p + 16 + sub / 2 * 32;
    const int shift = sub % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      out[sub * 32 + i] = sub_scale * static_cast<float>(from[i] >> shift & 15) - sub_minimum;
    }
  }
}

// As Q4_K with 32 bytes of fifth bits (bit v / 32 of byte v % 32) before the nibbles.
void unpack_q5_k(const uint8_t* p, float* out) {
  const float scale = read_f16(p);
  const float minimum = read_f16(p + 2);
  const uint8_t* high = p + 16;
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleAndMinimum pair = six_bit_pair(p + 4, sub);
    const float sub_scale = scale * static_cast<float>(pair.scale);
    const float sub_minimum = minimum * static_cast<float>(pair.minimum);
    const uint8_t* from = p + 48 + sub / 2 * 32;
    const int shift = sub % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int q = (from[i] >> shift & 15) | (high[i] >> sub & 1) << 4;
      out[sub * 32 + i] = sub_scale * static_cast<float>(q) - sub_minimum;
    }
  }
}

// | 128 bytes: low 4 bits | 64 bytes: high 2 bits | 16 signed scales, one per 16 values | scale f16
// | Of each 128 values, value 32 * s + i has its low bits in byte 32 * (s % 2) + i (nibble s / 2)
// and its high bits in byte i of 32 (bit pair s).
void unpack_q6_k(const uint8_t* p, float* out) {
  const float scale = read_f16(p + 208);
  for (int quarter = 0; quarter < 8; ++quarter) {  // 32 values each
    const int s = quarter % 4;
    const uint8_t* low = p + quarter / 4 * 64 + s % 2 * 32;
    const uint8_t* high = p + 128 + quarter / 4 * 32;
    for (int half = 0; half < 2; ++half) {
      const auto sub = static_cast<int8_t>(p[192 + quarter * 2 + half]);
      const float sub_scale = scale * static_cast<float>(sub);
      for (int i = half * 16; i < half * 16 + 16; ++i) {
        const int q = (low[i] >> (s / 2 * 4) & 15) | (high[i] >> (s * 2) & 3) << 4;
        out[quarter * 32 + i] = sub_scale * static_cast<float>(q - 32);
      }
    }
  }
}

template <void (*unpack)(const uint8_t*, float*), int block_bytes, int block_values>
void unpack_blocks(const uint8_t* in, std::span<float> out) {
  float* to = out.data();
  float* const end = to + out.size();
  for (; to != end; to += block_values, in += block_bytes) unpack(in, to);
}

void unpack_all(StorageType type, const uint8_t* in, std::span<float> out) {
  switch (type) {
    case StorageType::kF32:
      std::memcpy(out.data(), in, out.size_bytes());
      return;
    case StorageType::kF16:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = read_f16(in + 2 * i);
      return;
    case StorageType::kBF16:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = read_bf16(in + 2 * i);
      return;
    case StorageType::kQ4_0:
      return unpack_blocks<unpack_q4_0, 18, kSmall>(in, out);
    case StorageType::kQ4_1:
      return unpack_blocks<unpack_q4_1, 20, kSmall>(in, out);
    case StorageType::kQ5_0:
      return unpack_blocks<unpack_q5_0, 22, kSmall>(in, out);
    case StorageType::kQ5_1:
      return unpack_blocks<unpack_q5_1, 24, kSmall>(in, out);
    case StorageType::kQ8_0:
      return unpack_blocks<unpack_q8_0, 34, kSmall>(in, out);
    case StorageType::kQ2_K:
      return unpack_blocks<unpack_q2_k, 84, kSuper>(in, out);
    case StorageType::kQ3_K:
      return unpack_blocks<unpack_q3_k, 110, kSuper>(in, out);
    case StorageType::kQ4_K:
      return unpack_blocks<unpack_q4_k, 144, kSuper>(in, out);
    case StorageType::kQ5_K:
      return unpack_blocks<unpack_q5_k, 176, kSuper>(in, out);
    case StorageType::kQ6_K:
      return unpack_blocks<unpack_q6_k, 210, kSuper>(in, out);
    case StorageType::kIQ4_NL:
      return unpack_blocks<unpack_iq4_nl, 18, kSmall>(in, out);
  }
  fail(ErrorCode::kInternal, "unknown storage type {}", static_cast<int>(type));
}

}  // namespace

void dequantize_row(StorageType type, std::span<const std::byte> bytes, std::span<float> out) {
  const StorageTraits& traits = storage_traits(type);
  const auto block_values = static_cast<std::size_t>(traits.block_values);
  const auto block_bytes = static_cast<std::size_t>(traits.block_bytes);
  if (out.size() % block_values != 0 || bytes.size() % block_bytes != 0 ||
      bytes.size() / block_bytes != out.size() / block_values) {
    fail_argument("{} {} values need whole blocks of {} values in {} bytes; got {} bytes",
                  out.size(), traits.name, block_values, block_bytes, bytes.size());
  }
  if (out.empty()) return;
  unpack_all(type, reinterpret_cast<const uint8_t*>(bytes.data()), out);
}

at::Tensor dequantize(const StoredTensor& tensor) {
  const int64_t rows = tensor.rows();
  const int64_t cols = tensor.cols();
  const int64_t row_bytes = tensor.row_bytes();
  const int64_t block_values = storage_traits(tensor.type).block_values;
  int64_t needed = 0;
  if (rows < 0 || cols < 0 || cols % block_values != 0 ||
      __builtin_mul_overflow(rows, row_bytes, &needed) ||
      static_cast<uint64_t>(needed) != tensor.bytes.size()) {
    fail_argument("tensor {}: {} rows of {} {} values do not match its {} bytes", tensor.name, rows,
                  cols, storage_traits(tensor.type).name, tensor.bytes.size());
  }
  at::Tensor result = at::empty(tensor.shape, at::kFloat);
  float* out = result.mutable_data_ptr<float>();
  // A vector is one row: split by blocks instead, which are as independent as rows.
  const int64_t blocks = rows * (cols / block_values);
  const int64_t block_bytes = storage_traits(tensor.type).block_bytes;
  const int64_t grain = std::max<int64_t>(1, 65536 / block_values);
  at::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
    const auto count = static_cast<std::size_t>(end - begin);
    dequantize_row(tensor.type,
                   tensor.bytes.subspan(static_cast<std::size_t>(begin * block_bytes),
                                        count * static_cast<std::size_t>(block_bytes)),
                   {out + begin * block_values, count * static_cast<std::size_t>(block_values)});
  });
  return result;
}

}  // namespace coppice::ops
