// One look over a row's entries: scores them and notes those of little worth. Blocks that by what
// an earlier look has found hold none are passed over, so a step costs little more than what it
// evicts, at any budget.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "coppice/cache/block_table.h"
#include "coppice/eviction/pins.h"
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
  int64_t newest = 0;                       // position of the newest token
  int64_t sinks = 0;                        // entries of the first tokens are safe,
  int64_t recent = 0;                       // and those of the newest
  std::span<const PositionSpan> pins = {};  // and these; the same in every look with one RowBounds
  int64_t floor = 0;                        // entries each row keeps, safe ones counted
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

// Rows to look over together.
struct CandidateRows {
  std::span<const BlockTable> tables;
  uint64_t first_row = 0;            // the number of tables[0]
  RowBounds* bounds = nullptr;       // [rows], of these rows and this form of score alone; null:
                                     // every block is looked at and nothing is noted
  Candidate* out = nullptr;          // row r's candidates go to out + offsets[r] and on; room for
  const int64_t* offsets = nullptr;  // as many as it has entries
  int64_t* found = nullptr;          // [rows]: how many there are
};

// Writes, row by row and in row order, the entries that are not safe and whose rank is at most
// `cut`. Ranks are the same bits on every processor.
void collect_candidates(const Contest& contest, int32_t cut, const CandidateRows& rows);

}  // namespace coppice
