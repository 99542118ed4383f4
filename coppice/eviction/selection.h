// Finds the entries of least worth without sorting the rest, and without looking at them twice.
//
// The result follows from the order of Candidate alone: never from the order of rows' entries, from
// chance, from threads or from the machine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coppice/eviction/candidates.h"

namespace coppice {

// What is remembered of the last choice among the same rows: a step later scores have moved little.
struct SelectionMemory {
  int64_t count = 0;              // of entries chosen
  int32_t cut = 0;                // a rank with somewhat more entries below it
  std::vector<RowBounds> bounds;  // [rows]
};

class Selector final {
 public:
  // Chooses the `count` entries of least worth among those that are not safe, but leaves each row
  // at least `floor` entries where it has as many: its best. The result is valid until the next
  // call. `memory` belongs to these rows and this form of score alone. Throws kInternal where fewer
  // than `count` may go.
  void select(const Contest& contest, std::span<const BlockTable> rows, int64_t count,
              SelectionMemory& memory);

  // Entries that are not safe and score less than `threshold`, of each row no more than its floor
  // lets go. NaN scores count. The result of select() ends with this call.
  int64_t count_below(const Contest& contest, std::span<const BlockTable> rows, float threshold,
                      SelectionMemory& memory);

  // Places of the chosen entries of a row, rising.
  std::span<const int32_t> chosen(std::size_t row) const;

 private:
  void begin(std::span<const BlockTable> rows, SelectionMemory& memory);
  int64_t collect(const Contest& contest, std::span<const BlockTable> rows, int32_t cut,
                  std::vector<RowBounds>& bounds);
  void apply_limits();
  int32_t guess_cut(const Contest& contest, std::span<const BlockTable> rows, int64_t count);
  bool limit_short_rows(std::span<const BlockTable> rows, int64_t floor);
  void choose(int64_t count);
  void remember_cut(int64_t count, int32_t cut, SelectionMemory& memory);

  std::vector<int64_t> offsets_;  // [rows + 1]: where a row's candidates begin
  std::vector<int64_t> found_;    // [rows]: how many it has
  std::vector<int64_t> limits_;   // [rows]: how many of them may go; -1: all
  std::unique_ptr<Candidate[]>
      candidates_;  // room for all entries; what is not used is not touched
  int64_t capacity_ = 0;
  std::vector<Candidate> merged_;
  std::vector<int32_t> places_;
  std::vector<int64_t> place_offsets_;  // [rows + 1]
};

}  // namespace coppice
