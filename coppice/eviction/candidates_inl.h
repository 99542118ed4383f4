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
        pins(contest.pins),
        cut(highest_rank),
        // A rank beyond those of numbers becomes a NaN.
        cut_score(std::bit_cast<float>(highest_rank ^ ((highest_rank >> 31) & INT32_MAX))) {}

  const int32_t* positions;
  const float* log_betas;
  const float* aux;
  ScoreForm form;
  int32_t now, sinks, recent;
  std::span<const PositionSpan> pins;
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
// A block to look at, of the row'th row of a call.
struct BlockPlace {
  uint32_t row, block;
};

// The blocks of all rows that the bounds do not clear.
template <typename Lanes>
[[gnu::always_inline]] inline void screen_rows(const LookTask& task, const CandidateRows& rows,
                                               std::vector<BlockPlace>& to_look) {
  to_look.clear();
  for (std::size_t r = 0; r < rows.tables.size(); ++r) {
    const BlockTable& row = rows.tables[r];
    RowBounds* bounds = rows.bounds == nullptr ? nullptr : rows.bounds + r;
    if (bounds != nullptr) bounds->resize(row.blocks.size());
    const int64_t blocks = blocks_for_row(row.length);
    for (int64_t first = 0; first < blocks; first += 16) {
      const int64_t count = std::min<int64_t>(16, blocks - first);
      uint32_t look = (1U << count) - 1;
      if (bounds != nullptr) look = Lanes::screen(task, row, *bounds, first, count);
      for (; look != 0; look &= look - 1)
        to_look.push_back(
            {static_cast<uint32_t>(r), static_cast<uint32_t>(first + std::countr_zero(look))});
    }
  }
}

constexpr std::size_t kAheadLooks = 12;  // blocks are scattered: asked for in time

template <typename Lanes>
[[gnu::always_inline]] inline void collect_with(const LookTask& task, const CandidateRows& rows) {
  static thread_local std::vector<BlockPlace> to_look;
  screen_rows<Lanes>(task, rows, to_look);
  const auto slot_of = [&](const BlockPlace& place) {
    return int64_t{rows.tables[place.row].blocks[place.block]} * kBlockEntries;
  };
  std::fill_n(rows.found, rows.tables.size(), int64_t{0});
  BlockLook seen;
  for (std::size_t next = 0; next < to_look.size(); ++next) {
    if (next + kAheadLooks < to_look.size()) {
      const int64_t ahead = slot_of(to_look[next + kAheadLooks]);
      __builtin_prefetch(task.positions + ahead);
      __builtin_prefetch(task.aux + ahead);
      __builtin_prefetch(task.log_betas + ahead);
    }
    const auto [r, b] = to_look[next];
    const BlockTable& row = rows.tables[r];
    const int64_t slot = slot_of(to_look[next]);
    const int64_t start = int64_t{b} * kBlockEntries;
    uint32_t hits = Lanes::look(task, slot, std::min(kBlockEntries, row.length - start), seen);
    if (rows.bounds != nullptr) {
      RowBounds& bounds = rows.bounds[r];
      bounds.stamps[b] = row.stamps[b];
      bounds.low[b] = seen.low;
      bounds.fall[b] = seen.fall;
      bounds.newest[b] = task.now;
    }
    Candidate* out = rows.out + rows.offsets[r] + rows.found[r];
    rows.found[r] += std::popcount(hits);
    const uint64_t row_bits = (uint64_t{UINT32_MAX} - (rows.first_row + r)) << 32;
    for (; hits != 0; hits &= hits - 1) {
      const int i = std::countr_zero(hits);
      const uint64_t rank = static_cast<uint32_t>(seen.ranks[i]) ^ 0x80000000u;
      const auto position = static_cast<uint32_t>(task.positions[slot + i]);
      *out++ = {(rank << 32) | position, row_bits | static_cast<uint64_t>(start + i)};
    }
  }
}

using CollectFn = void (*)(const LookTask&, const CandidateRows&);

// Null where the compiler cannot make it.
CollectFn avx512_collect();

}  // namespace coppice
