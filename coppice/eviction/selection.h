// Finds the entries of least worth without sorting the rest.
//
// Worth is a total order: score, then newer position, then lower row. So the result never depends
// on the order of rows' entries, on chance or on the machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

// Scores as signed integers in the same order; -0 equals +0, NaN is below all.
// kProtectedRank is above every score.
inline constexpr int32_t kProtectedRank = INT32_MAX;
int32_t score_rank(float score);
void score_ranks(std::span<const float> scores, std::span<int32_t> ranks);

// The entries of several rows, one row after the other.
struct RankedRows {
  std::span<const int32_t> ranks;      // [N]
  std::span<const int32_t> positions;  // [N]
  std::span<const int64_t> offsets;    // [rows + 1]: row r owns offsets[r] .. offsets[r + 1] - 1
};

class Selector final {
 public:
  // Indices of the `count` entries of least worth, rising. The result is valid until the next call.
  // REQUIRES: 0 <= count <= N.
  std::span<const int64_t> lowest(const RankedRows& rows, int64_t count);

 private:
  struct Candidate {
    uint64_t worth;  // rank, then position
    uint64_t place;  // higher rows first, then the index
    bool operator<(const Candidate& other) const {
      return worth != other.worth ? worth < other.worth : place < other.place;
    }
  };
  int32_t guess_cut(std::span<const int32_t> ranks, int64_t count);
  void collect(const RankedRows& rows, int32_t cut);

  std::vector<int32_t> sample_;
  std::vector<Candidate> candidates_;
  std::vector<Candidate> partitioned_;
  std::vector<int64_t> result_;
};

}  // namespace coppice
