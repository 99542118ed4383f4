// The look over a row that all levels share: Lanes brings the two steps that work on 16 things at
// once. Internal to eviction/. Files that include it are compiled without contraction of products
// and sums, so that all levels round alike.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "coppice/eviction/candidates.h"

namespace coppice {

// Contest in the types of the loops.
struct LookTask {
  explicit LookTask(const Contest& contest, int32_t highest_rank)
      : positions(contest.positions),
        log_betas(contest.log_betas),
        aux(contest.aux),
        form(contest.form),
        now(static_cast<int32_t>(contest.newest)),
        sinks(static_cast<int32_t>(std::min<int64_t>(contest.sinks, INT32_MAX))),
        recent(static_cast<int32_t>(std::max<int64_t>(contest.newest + 1 - contest.recent, 0))),
        cut(highest_rank),
        // A rank beyond those of numbers becomes a NaN.
        cut_score(std::bit_cast<float>(highest_rank ^ ((highest_rank >> 31) & INT32_MAX))) {}

  const int32_t* positions;
  const float* log_betas;
  const float* aux;
  ScoreForm form;
  int32_t now, sinks, recent;
  int32_t cut;
  float cut_score;
};

struct BlockLook {
  int32_t ranks[kBlockEntries];
  float low, fall;  // as in RowBounds
};

static_assert(kBlockEntries == 16);

// Lanes:
//   uint32_t look(task, slot, held, out)   the first `held` entries of the block at `slot`: ranks,
//       low and fall; a bit for each entry that is not safe and at most the cut
//   uint32_t screen(task, row, bounds, first, count)   a bit for each of the blocks first .. first
//   +
//       count - 1, at most 16, that may hold such an entry. A slack covers the rounding of scores.
template <typename Lanes>
[[gnu::always_inline]] inline int64_t collect_with(const LookTask& task, const BlockTable& row,
                                                   int64_t row_index, RowBounds* bounds,
                                                   Candidate* out) {
  const uint64_t row_bits = (uint64_t{UINT32_MAX} - static_cast<uint64_t>(row_index)) << 32;
  const int64_t blocks = blocks_for_row(row.length);
  if (bounds != nullptr) bounds->resize(row.blocks.size());
  Candidate* next = out;
  BlockLook seen;
  for (int64_t first = 0; first < blocks; first += 16) {
    const int64_t count = std::min<int64_t>(16, blocks - first);
    uint32_t look = (1U << count) - 1;
    if (bounds != nullptr) look = Lanes::screen(task, row, *bounds, first, count);
    for (uint32_t left = look; left != 0; left &= left - 1) {
      const auto b = static_cast<std::size_t>(first + std::countr_zero(left));
      const int64_t slot = int64_t{row.blocks[b]} * kBlockEntries;
      __builtin_prefetch(task.positions + slot);
      __builtin_prefetch(task.aux + slot);
      __builtin_prefetch(task.log_betas + slot);
    }
    for (uint32_t left = look; left != 0; left &= left - 1) {
      const auto b = static_cast<std::size_t>(first + std::countr_zero(left));
      const int64_t slot = int64_t{row.blocks[b]} * kBlockEntries;
      const int64_t start = static_cast<int64_t>(b) * kBlockEntries;
      const int64_t held = std::min(kBlockEntries, row.length - start);
      uint32_t hits = Lanes::look(task, slot, held, seen);
      if (bounds != nullptr) {
        bounds->stamps[b] = row.stamps[b];
        bounds->low[b] = seen.low;
        bounds->fall[b] = seen.fall;
        bounds->newest[b] = task.now;
      }
      for (; hits != 0; hits &= hits - 1) {
        const int i = std::countr_zero(hits);
        const uint64_t rank = static_cast<uint32_t>(seen.ranks[i]) ^ 0x80000000u;
        const auto position = static_cast<uint32_t>(task.positions[slot + i]);
        *next++ = {(rank << 32) | position, row_bits | static_cast<uint64_t>(start + i)};
      }
    }
  }
  return next - out;
}

using CollectFn = int64_t (*)(const LookTask&, const BlockTable&, int64_t, RowBounds*, Candidate*);

// Null where the compiler cannot make it.
CollectFn avx512_collect();

}  // namespace coppice
