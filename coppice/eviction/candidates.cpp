// Compiled without contraction of products and sums, so that all levels round alike.
#include "coppice/eviction/candidates.h"

#include <algorithm>
#include <bit>

#include "coppice/ops/cpu_features.h"

namespace coppice {
namespace {

constexpr int64_t kAheadBlocks = 12;  // how far ahead of the scattered blocks to ask for them

// The bits of a float as an integer of the same order.
[[gnu::always_inline]] inline int32_t to_rank(float score) {
  const auto bits = std::bit_cast<int32_t>(score + 0.0f);  // the sum makes -0 a +0
  const int32_t rank = bits ^ ((bits >> 31) & std::numeric_limits<int32_t>::max());
  constexpr int32_t kInfinity = 0x7f800000;
  const bool nan = (bits & std::numeric_limits<int32_t>::max()) > kInfinity;
  return nan ? std::numeric_limits<int32_t>::min() : rank;
}

// Ranks of the 16 entries of a block; true where one is at most `cut`.
struct Ranker {
  explicit Ranker(const Contest& c)
      : now(static_cast<int32_t>(c.newest)),
        sinks(static_cast<int32_t>(std::min<int64_t>(c.sinks, INT32_MAX))),
        recent(static_cast<int32_t>(std::max<int64_t>(c.newest + 1 - c.recent, 0))) {}

  template <bool kGated>
  [[gnu::always_inline]] bool rank_block(const Contest& c, int64_t slot, int32_t cut,
                                         int32_t (&ranks)[kBlockEntries]) const {
    const int32_t* positions = c.positions + slot;
    const float* log_betas = c.log_betas + slot;
    const float* aux = c.aux + slot;
    const float offset = c.form.age_offset, weight = c.form.aux_weight, fixed = c.form.slope;
    int32_t hits = 0;
    for (int64_t i = 0; i < kBlockEntries; ++i) {
      const float age = static_cast<float>(now - positions[i]) + offset;
      const float score = age * (kGated ? log_betas[i] : fixed) + weight * aux[i];
      const int32_t safe = (positions[i] < sinks) | (positions[i] >= recent);
      const int32_t rank = safe ? kProtectedRank : to_rank(score);
      ranks[i] = rank;
      hits += rank <= cut ? 1 : 0;
    }
    return hits > 0;
  }

  int32_t now, sinks, recent;
};

template <bool kGated>
[[gnu::always_inline]] inline int64_t collect(const Contest& contest, const BlockTable& row,
                                              int64_t row_index, int32_t cut, Candidate* out) {
  const Ranker ranker(contest);
  const uint64_t row_bits = (uint64_t{UINT32_MAX} - static_cast<uint64_t>(row_index)) << 32;
  const int64_t blocks = blocks_for_row(row.length);
  Candidate* next = out;
  for (int64_t b = 0; b < blocks; ++b) {
    if (b + kAheadBlocks < blocks) {
      const int64_t ahead =
          int64_t{row.blocks[static_cast<std::size_t>(b + kAheadBlocks)]} * kBlockEntries;
      __builtin_prefetch(contest.positions + ahead);
      __builtin_prefetch(contest.aux + ahead);
      if constexpr (kGated) __builtin_prefetch(contest.log_betas + ahead);
    }
    int32_t ranks[kBlockEntries];
    const int64_t slot = int64_t{row.blocks[static_cast<std::size_t>(b)]} * kBlockEntries;
    if (!ranker.rank_block<kGated>(contest, slot, cut, ranks)) continue;
    const int64_t held = std::min<int64_t>(kBlockEntries, row.length - b * kBlockEntries);
    for (int64_t i = 0; i < held; ++i) {
      if (ranks[i] > cut) continue;
      const uint64_t rank = static_cast<uint32_t>(ranks[i]) ^ 0x80000000u;
      const auto position = static_cast<uint32_t>(contest.positions[slot + i]);
      *next++ = {(rank << 32) | position, row_bits | static_cast<uint64_t>(b * kBlockEntries + i)};
    }
  }
  return next - out;
}

[[gnu::always_inline]] inline int64_t collect_any(const Contest& contest, const BlockTable& row,
                                                  int64_t row_index, int32_t cut, Candidate* out) {
  return contest.form.slope_is_log_beta ? collect<true>(contest, row, row_index, cut, out)
                                        : collect<false>(contest, row, row_index, cut, out);
}

using Collect = int64_t (*)(const Contest&, const BlockTable&, int64_t, int32_t, Candidate*);

int64_t collect_portable(const Contest& contest, const BlockTable& row, int64_t row_index,
                         int32_t cut, Candidate* out) {
  return collect_any(contest, row, row_index, cut, out);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] int64_t collect_avx2(const Contest& contest, const BlockTable& row,
                                             int64_t row_index, int32_t cut, Candidate* out) {
  return collect_any(contest, row, row_index, cut, out);
}
[[gnu::target("avx512f,prefer-vector-width=512")]] int64_t collect_avx512(
    const Contest& contest, const BlockTable& row, int64_t row_index, int32_t cut, Candidate* out) {
  return collect_any(contest, row, row_index, cut, out);
}
#endif

Collect choose_collect() {
#if defined(__x86_64__)
  if (ops::cpu_level() >= ops::CpuLevel::kAvx512) return collect_avx512;
  if (ops::cpu_level() >= ops::CpuLevel::kAvx2) return collect_avx2;
#endif
  return collect_portable;
}

}  // namespace

int32_t score_rank(float score) { return to_rank(score); }

int64_t collect_candidates(const Contest& contest, const BlockTable& row, int64_t row_index,
                           int32_t cut, Candidate* out) {
  static const Collect run = choose_collect();
  return run(contest, row, row_index, cut, out);
}

}  // namespace coppice
