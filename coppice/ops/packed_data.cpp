#include "coppice/ops/packed_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/packed_codes.h"
#include "coppice/ops/packed_float.h"
#include "coppice/ops/packed_memory.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

static_assert(std::endian::native == std::endian::little);  // words of four codes are moved whole

constexpr int64_t kLineBytes = 64;
// Keeps every size below 2^62, however it is multiplied afterwards.
constexpr int64_t kMostRowsOrCols = int64_t{1} << 31;
constexpr int64_t kMostValues = int64_t{1} << 48;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

std::span<const std::byte> row_of(const StoredTensor& stored, int64_t row) {
  const auto size = static_cast<std::size_t>(stored.row_bytes());
  return stored.bytes.subspan(static_cast<std::size_t>(row) * size, size);
}

// The power of two by which scales are stored: 1 where they are float16 already.
float scale_unit(const StoredTensor& stored) {
  if (storage_traits(stored.type).block_values != 256) return 1.0f;
  const float largest = largest_scale_bound(stored.type, stored.bytes);
  if (!(largest > 0.0f)) return 1.0f;
  return std::ldexp(1.0f, std::ilogb(largest) - 13);
}

struct Scratch {
  std::vector<uint8_t> codes;   // [16, cols]
  std::vector<float> scales;    // [16, groups]
  std::vector<float> minimums;  // [16, groups] or empty
};

// Codes of 16 rows, four columns of a row to a word, into lines of 64 bytes.
void interleave_codes(const CodeBlocks& w, const uint8_t* codes, uint8_t* block) {
  const int64_t line_cols = 32 / w.bits;
  for (int64_t g = 0; g < w.groups(); ++g) {
    uint8_t* to = block + w.codes_at(g);
    for (int64_t col = g * w.group; col < (g + 1) * w.group; col += line_cols, to += kLineBytes) {
      for (int64_t lane = 0; lane < kBlockRows; ++lane) {
        uint32_t word, high = 0;
        std::memcpy(&word, codes + lane * w.cols + col, sizeof(word));
        if (w.bits == 4) std::memcpy(&high, codes + lane * w.cols + col + 4, sizeof(high));
        word |= high << 4;
        std::memcpy(to + lane * 4, &word, sizeof(word));
      }
    }
  }
}

void interleave_scales(const CodeBlocks& w, const Scratch& scratch, uint8_t* block) {
  const int64_t groups = w.cols / w.group;
  const int64_t stride = w.has_minimum ? 2 * kBlockRows : kBlockRows;
  const float inverse = 1.0f / w.unit;
  for (int64_t g = 0; g < groups; ++g) {
    uint16_t halves[2 * kBlockRows];
    for (int64_t lane = 0; lane < kBlockRows; ++lane) {
      const auto at = static_cast<std::size_t>(lane * groups + g);
      halves[lane] = float_to_half(scratch.scales[at] * inverse);
      if (w.has_minimum) {
        halves[kBlockRows + lane] = float_to_half(scratch.minimums[at] * inverse);
      }
    }
    std::memcpy(block + w.scales_at(g), halves, static_cast<std::size_t>(stride) * 2);
  }
}

void pack_code_block(const StoredTensor& stored, const PackedData& data, int64_t block,
                     Scratch& scratch) {
  const CodeBlocks& w = data.codes;
  const auto cols = static_cast<std::size_t>(w.cols);
  const std::size_t groups = cols / static_cast<std::size_t>(w.group);
  scratch.codes.assign(cols * kBlockRows, 0);
  scratch.scales.assign(groups * kBlockRows, 0.0f);
  scratch.minimums.assign(w.has_minimum ? groups * kBlockRows : 0, 0.0f);
  const int64_t lanes = std::min(kBlockRows, data.rows - block * kBlockRows);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const auto i = static_cast<std::size_t>(lane);
    CodeRow row{std::span(scratch.codes).subspan(i * cols, cols),
                std::span(scratch.scales).subspan(i * groups, groups),
                {}};
    if (w.has_minimum) row.minimums = std::span(scratch.minimums).subspan(i * groups, groups);
    unpack_codes(stored.type, row_of(stored, block * kBlockRows + lane), row);
  }
  uint8_t* to = data.memory.get() + block * data.block_bytes;
  interleave_codes(w, scratch.codes.data(), to);
  interleave_scales(w, scratch, to);
}

uint16_t bf16_at(StorageType type, const std::byte* p) {
  if (type == StorageType::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return float_to_bf16(value);
  }
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return type == StorageType::kBF16 ? bits : float_to_bf16(half_to_float(bits));
}

void pack_value_block(const StoredTensor& stored, const PackedData& data, int64_t block) {
  const int64_t size = storage_traits(stored.type).block_bytes;
  auto* to = reinterpret_cast<uint16_t*>(data.memory.get() + block * data.block_bytes);
  std::memset(to, 0, static_cast<std::size_t>(data.block_bytes));
  const int64_t lanes = std::min(kBlockRows, data.rows - block * kBlockRows);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const std::byte* from = row_of(stored, block * kBlockRows + lane).data();
    for (int64_t col = 0; col < data.cols; ++col) {
      to[(col / 2 * kBlockRows + lane) * 2 + col % 2] = bf16_at(stored.type, from + col * size);
    }
  }
}

}  // namespace

PackedData plan_packing(StorageType type, int64_t rows, int64_t cols) {
  const StorageTraits& traits = storage_traits(type);
  if (rows < 1 || cols < 1 || rows > kMostRowsOrCols || cols > kMostRowsOrCols ||
      rows > kMostValues / cols) {
    fail_argument("packed matrix: expected 1 to 2^31 rows and columns, got {} x {}", rows, cols);
  }
  if (cols % traits.block_values != 0) {
    fail_argument("packed matrix: {} needs columns in multiples of {}, got {}", traits.name,
                  traits.block_values, cols);
  }
  PackedData data;
  data.rows = rows;
  data.cols = cols;
  if (is_quantised(type)) {
    const CodeShape shape = code_shape(type);
    data.form = shape.bits == 4 ? WeightForm::k4Bit : WeightForm::k8Bit;
    CodeBlocks& w = data.codes;
    w.rows = rows;
    w.cols = cols;
    w.bits = shape.bits;
    w.group = shape.group;
    w.has_minimum = shape.has_minimum;
    const int64_t scale_lines = round_up(w.groups(), w.groups_per_line()) / w.groups_per_line();
    w.block_bytes = w.groups() * w.group_bytes() + scale_lines * kLineBytes;
    data.block_bytes = w.block_bytes;
  } else {
    data.values.rows = rows;
    data.values.cols = round_up(cols, 2);
    data.block_bytes = data.values.cols * kBlockRows * 2;
  }
  data.bytes = data.blocks() * data.block_bytes;
  return data;
}

PackedData pack_data(const StoredTensor& stored) {
  if (stored.shape.size() != 2) {
    fail_argument("packed matrix '{}': expected 2 dims, got {}", stored.name, stored.shape.size());
  }
  PackedData data = plan_packing(stored.type, stored.shape[0], stored.shape[1]);
  const int64_t expected = data.rows * stored.row_bytes();
  if (static_cast<int64_t>(stored.bytes.size()) != expected) {
    fail_argument("packed matrix '{}': {} of {} x {} takes {} bytes, got {}", stored.name,
                  storage_traits(stored.type).name, data.rows, data.cols, expected,
                  stored.bytes.size());
  }
  data.memory = allocate_packed(data.bytes);
  data.codes.data = data.memory.get();
  data.values.data = reinterpret_cast<const uint16_t*>(data.memory.get());
  const bool coded = data.form != WeightForm::kBf16;
  if (coded) data.codes.unit = scale_unit(stored);
  parallel_for(0, data.blocks(), std::max<int64_t>(1, 65536 / (data.cols * kBlockRows)),
               [&](int64_t begin, int64_t end) {
                 Scratch scratch;
                 for (int64_t block = begin; block < end; ++block) {
                   if (coded) {
                     pack_code_block(stored, data, block, scratch);
                   } else {
                     pack_value_block(stored, data, block);
                   }
                 }
               });
  return data;
}

void unpack_row(const PackedData& data, int64_t row, float* out) {
  const uint8_t* block = data.memory.get() + row / kBlockRows * data.block_bytes;
  const int64_t lane = row % kBlockRows;
  if (data.form == WeightForm::kBf16) {
    const auto* values = reinterpret_cast<const uint16_t*>(block);
    for (int64_t col = 0; col < data.cols; ++col) {
      out[col] = bf16_to_float(values[(col / 2 * kBlockRows + lane) * 2 + col % 2]);
    }
    return;
  }
  const CodeBlocks& w = data.codes;
  const int middle = w.has_minimum ? 0 : 1 << (w.bits - 1);
  for (int64_t g = 0; g < w.groups(); ++g) {
    uint16_t half = 0, low = 0;
    const uint8_t* scales = block + w.scales_at(g) + lane * 2;
    std::memcpy(&half, scales, 2);
    if (w.has_minimum) std::memcpy(&low, scales + 2 * kBlockRows, 2);
    const float scale = half_to_float(half) * w.unit, minimum = half_to_float(low) * w.unit;
    for (int64_t col = 0; col < w.group; ++col) {
      const int code = code_at(w, block, lane, g, col) - middle;
      *out++ = scale * static_cast<float>(code) + minimum;
    }
  }
}

}  // namespace coppice::ops
