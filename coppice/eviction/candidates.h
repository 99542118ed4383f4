// One look over a row's entries: scores them and notes those of little worth. Blocks that by what
// an earlier look has found hold none are passed over, so a step costs little more than what it
// evicts, at any budget.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "coppice/cache/block_table.h"
#include "coppice/eviction/scorers.h"

namespace coppice {

// Scores as signed integers in the same order; -0 equals +0, NaN is below all.
int32_t score_rank(float score);

// Above the rank of every score.
inline constexpr int32_t kProtectedRank = std::numeric_limits<int32_t>::max();

// What one round of eviction compares. Pools are indexed by slot.
struct Contest {
  const int32_t* positions = nullptr;
  const float* log_betas = nullptr;
  const float* aux = nullptr;
  ScoreForm form;
  int64_t newest = 0;  // position of the newest token
  int64_t sinks = 0;   // entries of the first tokens are safe,
  int64_t recent = 0;  // and those of the newest
  int64_t floor = 0;   // entries each row keeps, safe ones counted
};

// An entry that may go. Worth is a total order: score, then newer position, then lower row.
struct Candidate {
  uint64_t worth;  // rank of the score, then position
  uint64_t place;  // higher rows first, then the place in the row
  bool operator<(const Candidate& other) const {
    return worth != other.worth ? worth < other.worth : place < other.place;
  }
  int32_t row_place() const { return static_cast<int32_t>(place); }
};

// What is known of a row's blocks from an earlier look, so that those whose entries are all worth
// more than the cut need none: scores fall by their slopes from step to step, and no slope is above
// 0. Holds for a block as long as its stamp does.
struct RowBounds {
  std::vector<uint64_t> stamps;  // [blocks]; 0: nothing is known
  std::vector<float> low;        // the least score
  std::vector<float> fall;       // the steepest slope
  std::vector<int32_t> newest;   // when that was so

  void resize(std::size_t blocks);
};

// Writes the entries that are not safe and whose rank is at most `cut`, in row order, and returns
// their number. `out` has room for row.length. Ranks are the same bits on every processor. `bounds`
// is of this row and of this form of score; null: every block is looked at and nothing is noted.
int64_t collect_candidates(const Contest& contest, const BlockTable& row, int64_t row_index,
                           int32_t cut, RowBounds* bounds, Candidate* out);

}  // namespace coppice
