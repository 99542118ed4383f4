// The CPU paths of write_entries and move_entries: plain loops over raw memory.
#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>
#include <vector>

#include "coppice/cache/pool_tensors.h"
#include "coppice/ops/parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace coppice {
namespace {

// Rounds to nearest even, as tensor.to() does.
#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) int64_t to_half_f16c(const float* from, int64_t count,
                                                         uint16_t* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half =
        _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
  }
  return i;
}

bool has_f16c() {
  static const bool yes = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return yes;
}
#endif

void convert(const float* from, int64_t count, at::ScalarType type, uint16_t* to) {
  int64_t i = 0;
  if (type == at::kHalf) {
#if defined(__x86_64__)
    if (has_f16c()) i = to_half_f16c(from, count, to);
#endif
    for (; i < count; ++i) to[i] = c10::Half(from[i]).x;
  } else {
    for (; i < count; ++i) to[i] = c10::BFloat16(from[i]).x;
  }
}

// Float source with unit stride along D; its strides along T and Hkv.
struct Source {
  explicit Source(const at::Tensor& tensor)
      : data(tensor.const_data_ptr<float>()), token(tensor.stride(0)), head(tensor.stride(1)) {}
  const float* at(int64_t t, int64_t h) const { return data + t * token + h * head; }
  const float* data;
  int64_t token, head;
};

at::Tensor as_source(const at::Tensor& tensor) {
  const at::Tensor floats = tensor.to(at::kFloat);
  return floats.stride(2) == 1 ? floats : floats.contiguous();
}

// Element is float or the bits of a 16-bit float.
template <typename Element>
const Element* as_stored(const float* from, int64_t width, at::ScalarType type, Element* scratch) {
  if constexpr (sizeof(Element) == 4) {
    return from;
  } else {
    convert(from, width, type, scratch);
    return scratch;
  }
}

template <typename Element>
void write_keys_values(PoolTensors& pools, std::span<const BlockTable> rows, const at::Tensor& k,
                       const at::Tensor& v) {
  const int64_t tokens = k.size(0), width = k.size(2);
  const at::ScalarType type = pools.keys.scalar_type();
  auto* keys = static_cast<Element*>(pools.keys.mutable_data_ptr());
  auto* values = static_cast<Element*>(pools.values.mutable_data_ptr());
  const Source source_k(k), source_v(v);
  std::vector<Element> scratch(static_cast<std::size_t>(width));
  for (std::size_t h = 0; h < rows.size(); ++h) {
    const auto head = static_cast<int64_t>(h);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t slot = rows[h].slot(rows[h].length + t);
      Element* column = keys + slot / kBlockEntries * width * kBlockEntries + slot % kBlockEntries;
      const Element* key = as_stored(source_k.at(t, head), width, type, scratch.data());
      for (int64_t d = 0; d < width; ++d) column[d * kBlockEntries] = key[d];
      Element* value = values + slot * width;
      if constexpr (sizeof(Element) == 4)
        std::memcpy(value, source_v.at(t, head), static_cast<std::size_t>(width) * sizeof(Element));
      else
        convert(source_v.at(t, head), width, type, value);
    }
  }
}

void write_metadata(PoolTensors& pools, std::span<const BlockTable> rows,
                    const NewEntries& entries) {
  const int64_t tokens = entries.k.size(0);
  auto* positions = pools.positions.mutable_data_ptr<int32_t>();
  auto* log_betas = pools.log_betas.mutable_data_ptr<float>();
  auto* aux = pools.aux.mutable_data_ptr<float>();
  auto* modalities = pools.modalities.mutable_data_ptr<uint8_t>();
  auto* rotary = pools.rotary.defined() ? pools.rotary.mutable_data_ptr<int32_t>() : nullptr;
  at::Tensor log_beta, modality;
  if (entries.log_beta.defined()) log_beta = entries.log_beta.to(at::kCPU, at::kFloat).contiguous();
  if (entries.modality.defined()) modality = entries.modality.to(at::kCPU, at::kByte).contiguous();
  const float* beta = log_beta.defined() ? log_beta.const_data_ptr<float>() : nullptr;
  const uint8_t* kind = modality.defined() ? modality.const_data_ptr<uint8_t>() : nullptr;
  const auto heads = static_cast<int64_t>(rows.size());
  for (int64_t h = 0; h < heads; ++h) {
    const BlockTable& row = rows[static_cast<std::size_t>(h)];
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t slot = row.slot(row.length + t);
      positions[slot] = static_cast<int32_t>(entries.first_position + t);
      log_betas[slot] = beta != nullptr ? beta[t * heads + h] : 0.0f;
      aux[slot] = 0.0f;
      modalities[slot] = kind != nullptr ? kind[t] : uint8_t{0};
      if (rotary != nullptr)
        rotary[slot] = entries.rotary.empty() ? static_cast<int32_t>(entries.first_rotary + t)
                                              : entries.rotary[static_cast<std::size_t>(t)];
    }
  }
}

// Stored is float, c10::Half or c10::BFloat16.
template <typename Stored>
void read_key_columns(const at::Tensor& pool, const BlockTable& row, int64_t first, int64_t count,
                      float* out) {
  const auto* keys = static_cast<const Stored*>(pool.const_data_ptr());
  const int64_t width = pool.size(1);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = row.slot(first + i);
    const Stored* column =
        keys + slot / kBlockEntries * width * kBlockEntries + slot % kBlockEntries;
    for (int64_t d = 0; d < width; ++d)
      out[i * width + d] = static_cast<float>(column[d * kBlockEntries]);
  }
}

template <typename Element>
void move_keys_values(PoolTensors& pools, std::span<const SlotMove> moves) {
  const int64_t width = pools.keys.size(1);
  auto* keys = static_cast<Element*>(pools.keys.mutable_data_ptr());
  auto* values = static_cast<Element*>(pools.values.mutable_data_ptr());
  const int64_t stride = width * kBlockEntries;
  for (const SlotMove& move : moves) {
    const Element* from = keys + move.from / kBlockEntries * stride + move.from % kBlockEntries;
    Element* to = keys + move.to / kBlockEntries * stride + move.to % kBlockEntries;
    for (int64_t d = 0; d < stride; d += kBlockEntries) to[d] = from[d];
    std::memcpy(values + move.to * width, values + move.from * width,
                static_cast<std::size_t>(width) * sizeof(Element));
  }
}

template <typename Element>
void move_numbers(at::Tensor& pool, std::span<const SlotMove> moves) {
  auto* data = pool.mutable_data_ptr<Element>();
  for (const SlotMove& move : moves) data[move.to] = data[move.from];
}

}  // namespace

// The loops here are for the storage types that serve.
static bool has_loops(const PoolTensors& pools) {
  return pools.keys.device().is_cpu() && pools.keys.scalar_type() != at::kDouble;
}

void write_entries(PoolTensors& pools, std::span<const BlockTable> rows,
                   const NewEntries& entries) {
  if (!has_loops(pools) || !entries.k.device().is_cpu())
    return write_entries_reference(pools, rows, entries);
  const at::Tensor k = as_source(entries.k), v = as_source(entries.v);
  if (pools.keys.scalar_type() == at::kFloat)
    write_keys_values<float>(pools, rows, k, v);
  else
    write_keys_values<uint16_t>(pools, rows, k, v);
  write_metadata(pools, rows, entries);
}

void read_keys(const PoolTensors& pools, const BlockTable& row, int64_t first, int64_t count,
               float* out) {
  const at::Tensor keys = pools.keys.cpu();
  switch (keys.scalar_type()) {
    case at::kHalf:
      return read_key_columns<c10::Half>(keys, row, first, count, out);
    case at::kDouble:
      return read_key_columns<double>(keys, row, first, count, out);
    case at::kBFloat16:
      return read_key_columns<c10::BFloat16>(keys, row, first, count, out);
    default:
      return read_key_columns<float>(keys, row, first, count, out);
  }
}

static void move_some(PoolTensors& pools, std::span<const SlotMove> moves) {
  if (pools.keys.scalar_type() == at::kFloat)
    move_keys_values<float>(pools, moves);
  else
    move_keys_values<uint16_t>(pools, moves);
  move_numbers<int32_t>(pools.positions, moves);
  move_numbers<float>(pools.log_betas, moves);
  move_numbers<float>(pools.aux, moves);
  move_numbers<uint8_t>(pools.modalities, moves);
  if (pools.rotary.defined()) move_numbers<int32_t>(pools.rotary, moves);
}

void move_entries(PoolTensors& pools, std::span<const SlotMove> moves) {
  if (!has_loops(pools)) return move_entries_reference(pools, moves);
  constexpr int64_t kMovesPerPiece = 16;  // some microseconds of waiting for memory
  ops::parallel_for(0, static_cast<int64_t>(moves.size()), kMovesPerPiece,
                    [&](int64_t begin, int64_t end) {
                      move_some(pools, moves.subspan(static_cast<std::size_t>(begin),
                                                     static_cast<std::size_t>(end - begin)));
                    });
}

}  // namespace coppice
