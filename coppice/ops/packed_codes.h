// Reads rows of quantised storage types as whole-number codes with scales, for the packed kernels.
//
// Every quantised type has one of two shapes, with codes of `bits` bits and one scale per `group`
// values along a row:
//   with minimum     value = scale * code + minimum
//   symmetric        value = scale * (code - 2^(bits - 1))
// Codes are exact. Scales of the K types are the float32 product of a block's float16 scale and a
// small whole number, which is exact too. Source: the GGUF block definitions, as in dequantize.h.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "coppice/core/stored_tensor.h"

namespace coppice::ops {

struct CodeShape {
  int bits = 8;    // 4 or 8; a narrower type uses the low end or the middle of the range
  int group = 32;  // values per scale: 16 or 32
  bool has_minimum = false;
};

// False for the plain types F32, F16 and BF16.
bool is_quantised(StorageType type);

// REQUIRES: is_quantised(type), else throws kInvalidArgument.
CodeShape code_shape(StorageType type);

// One row. `codes` has one entry per value, `scales` and `minimums` one per group; `minimums` may
// be empty for symmetric types. Throws kInvalidArgument when the sizes do not fit each other.
struct CodeRow {
  std::span<uint8_t> codes;
  std::span<float> scales;
  std::span<float> minimums;
};
void unpack_codes(StorageType type, std::span<const std::byte> row, const CodeRow& out);

// For K types: no finite scale or minimum in these blocks is larger in magnitude. Reads one or two
// float16 values a block. REQUIRES: a K type and whole blocks, else throws kInvalidArgument.
float largest_scale_bound(StorageType type, std::span<const std::byte> blocks);

}  // namespace coppice::ops
