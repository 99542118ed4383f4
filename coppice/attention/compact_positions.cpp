#include "coppice/attention/compact_positions.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/parallel.h"

namespace coppice {
namespace {

// The blocks of one row on the CPU: block b of the row is number ids[b] of these arrays.
struct RowData {
  std::span<const int32_t> ids;
  int64_t length;
  const int32_t* positions;  // [blocks, 16]
  int32_t* rotary;           // [blocks, 16]
  void* keys;                // [blocks, D, 16]

  int64_t slot(int64_t entry) const {
    return static_cast<int64_t>(ids[static_cast<std::size_t>(entry / kBlockEntries)]) *
               kBlockEntries +
           entry % kBlockEntries;
  }
};

// Turns the keys of one block [D, 16] from the positions `from` to the positions `to`. Angles are
// rounded to float32 as the model rounds them (ops/rope.h), so that a key turned on is the key
// rotated afresh.
template <typename T>
void turn_block(T* keys, std::span<const float> inv_freq, const int32_t* from, const int32_t* to) {
  const auto half = static_cast<int64_t>(inv_freq.size());
  for (int64_t j = 0; j < half; ++j)
    for (int64_t e = 0; e < kBlockEntries; ++e) {
      if (from[e] == to[e]) continue;
      const float frequency = inv_freq[static_cast<std::size_t>(j)];
      const double turn = static_cast<double>(static_cast<float>(to[e]) * frequency) -
                          static_cast<double>(static_cast<float>(from[e]) * frequency);
      const double cos = std::cos(turn), sin = std::sin(turn);
      T& low = keys[j * kBlockEntries + e];
      T& high = keys[(half + j) * kBlockEntries + e];
      const auto before = static_cast<double>(static_cast<float>(low));
      const auto other = static_cast<double>(static_cast<float>(high));
      low = static_cast<T>(static_cast<float>(before * cos - other * sin));
      high = static_cast<T>(static_cast<float>(other * cos + before * sin));
    }
}

// A row's entries by falling position, and how far before the end of all each begins when no gaps
// are left between them.
struct Packed {
  std::vector<int32_t> newest_first;  // [L], places in the row
  std::vector<int64_t> back;          // [L]
  int64_t extent = 0;                 // of all
};

Packed pack_row(const RowData& row, std::span<const RotaryGroup> groups, int64_t tokens_seen) {
  Packed packed;
  packed.newest_first.resize(static_cast<std::size_t>(row.length));
  std::iota(packed.newest_first.begin(), packed.newest_first.end(), 0);
  const auto position = [&](int32_t place) { return row.positions[row.slot(place)]; };
  std::ranges::sort(packed.newest_first,
                    [&](int32_t a, int32_t b) { return position(a) > position(b); });
  auto group = groups.rbegin();
  const RotaryGroup* counted = nullptr;
  for (const int32_t place : packed.newest_first) {
    while (group != groups.rend() && group->begin > position(place)) ++group;
    if (group == groups.rend() || position(place) >= group->end) {
      packed.extent += 1;
    } else if (counted != &*group) {
      counted = &*group;
      // One that is being read begins where its next token stands.
      if (group->end <= tokens_seen) packed.extent += group->extent;
    }
    packed.back.push_back(packed.extent);
  }
  return packed;
}

// Plain loops: a stream without end holds no more memory at its end than at its start.
template <typename T>
void compact_row(const RowData& row, const Packed& packed, std::span<const float> inv_freq,
                 int64_t next) {
  std::vector<int32_t> renumbered(row.ids.size() * kBlockEntries);
  // Slots behind the row's end keep what they hold.
  for (std::size_t i = 0; i < renumbered.size(); ++i)
    renumbered[i] = row.rotary[row.slot(static_cast<int64_t>(i))];
  for (std::size_t r = 0; r < packed.back.size(); ++r)
    renumbered[static_cast<std::size_t>(packed.newest_first[r])] =
        static_cast<int32_t>(std::max<int64_t>(next - packed.back[r], 0));
  const int64_t block_numbers = 2 * static_cast<int64_t>(inv_freq.size()) * kBlockEntries;
  for (std::size_t b = 0; b < row.ids.size(); ++b) {
    int32_t* const old = row.rotary + row.ids[b] * kBlockEntries;
    const int32_t* const now = renumbered.data() + b * kBlockEntries;
    turn_block(static_cast<T*>(row.keys) + row.ids[b] * block_numbers, inv_freq, old, now);
    std::copy_n(now, kBlockEntries, old);
  }
}

void compact_row(at::ScalarType type, const RowData& row, const Packed& packed,
                 std::span<const float> inv_freq, int64_t next) {
  switch (type) {
    case at::kHalf:
      return compact_row<c10::Half>(row, packed, inv_freq, next);
    case at::kBFloat16:
      return compact_row<c10::BFloat16>(row, packed, inv_freq, next);
    case at::kFloat:
      return compact_row<float>(row, packed, inv_freq, next);
    default:
      fail_argument("compact positions: keys of type {}", at::toString(type));
  }
}

}  // namespace

void compact_positions(KvCache& cache, SequenceId sequence, const at::Tensor& inv_freq,
                       int64_t trained_positions, std::span<const RotaryGroup> groups) {
  if (inv_freq.dim() != 1 || 2 * inv_freq.numel() != cache.config().head_dim)
    fail_argument("compact positions: expected {} frequencies, got {}", cache.config().head_dim / 2,
                  inv_freq.numel());
  if (trained_positions < 2)
    fail_argument("compact positions: expected a trained range of 2 or more, got {}",
                  trained_positions);
  if (!cache.keys().device().is_cpu())
    fail_argument("compact positions: expected keys on the CPU, got them on {}",
                  cache.keys().device().str());
  COPPICE_CHECK(cache.tokens_in_pass(sequence) == 0, "compact positions: a pass is in progress");
  const at::Tensor frequencies = inv_freq.to(at::kCPU, at::kFloat).contiguous();
  const std::span<const float> inv(frequencies.const_data_ptr<float>(),
                                   static_cast<std::size_t>(frequencies.numel()));
  const int64_t heads = cache.config().num_kv_heads;
  const int64_t rows = cache.config().num_layers * heads;
  const auto row_data = [&](int64_t at) {
    const BlockTable& row = cache.row(sequence, at / heads, at % heads);
    return RowData{row.blocks, row.length, cache.positions().const_data_ptr<int32_t>(),
                   cache.rotary_positions().data_ptr<int32_t>(), cache.keys().data_ptr()};
  };
  std::vector<Packed> packed(static_cast<std::size_t>(rows));
  const auto for_rows = [&](const auto& visit) {
    ops::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) visit(at, packed[static_cast<std::size_t>(at)]);
    });
  };
  const int64_t seen = cache.tokens_seen(sequence);
  for_rows([&](int64_t at, Packed& one) { one = pack_row(row_data(at), groups, seen); });
  int64_t next = 0;
  for (const Packed& one : packed) next = std::max(next, one.extent);
  next = std::min(next, trained_positions / 2);
  for_rows([&](int64_t at, const Packed& one) {
    if (!one.back.empty()) compact_row(cache.keys().scalar_type(), row_data(at), one, inv, next);
  });
  cache.set_next_rotary(sequence, next);
}

}  // namespace coppice
