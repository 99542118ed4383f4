#include "coppice/ops/encode_q8.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "coppice/core/error.h"
#include "coppice/ops/packed_float.h"

namespace coppice::ops {
namespace {

constexpr int64_t kGroup = 32;
constexpr float kLargestCode = 127.0f;
constexpr float kLargestHalf = 65504.0f;

}  // namespace

std::vector<std::byte> encode_q8(const float* values, int64_t rows, int64_t cols) {
  if (rows < 0 || cols < 0 || cols % kGroup != 0)
    fail_argument("8-bit weights: expected rows of whole groups of {}, got [{}, {}]", kGroup, rows,
                  cols);
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * cols / kGroup * (kGroup + 2)));
  std::byte* to = bytes.data();
  for (const float* from = values; from != values + rows * cols; from += kGroup) {
    float largest = 0.0f;
    for (int64_t i = 0; i < kGroup; ++i) {
      if (!(std::abs(from[i]) < kLargestCode * kLargestHalf))
        fail_argument("8-bit weights: {} is out of range", from[i]);
      largest = std::max(largest, std::abs(from[i]));
    }
    // Rounded up, so that the largest value needs no code beyond 127.
    uint16_t half = float_to_half(largest / kLargestCode);
    if (half_to_float(half) * kLargestCode < largest) ++half;
    const float scale = half_to_float(half);
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    std::memcpy(to, &half, sizeof(half));
    to += sizeof(half);
    for (int64_t i = 0; i < kGroup; ++i) {
      const float code = std::clamp(std::nearbyint(from[i] * inverse), -kLargestCode, kLargestCode);
      *to++ = static_cast<std::byte>(static_cast<int8_t>(code));
    }
  }
  return bytes;
}

}  // namespace coppice::ops
