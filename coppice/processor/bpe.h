// Byte-pair merging: one word, given as initial symbols, is merged pair by pair, always the pair of
// lowest rank, leftmost first. Serves byte-level vocabularies (ranks from a merge list) and
// SentencePiece-type ones (ranks from piece scores). O(n log n) in the length of the word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

// Which pair of token ids merges into which token, and how early.
class MergeTable final {
 public:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };

  // Room for `count` merges.
  explicit MergeTable(size_t count = 0);

  // The first rank given for a pair stays. REQUIRES: ids >= 0.
  void add(int32_t left, int32_t right, Merge merge);
  // Null when the pair never merges. Ids may be negative (symbols outside the vocabulary).
  const Merge* find(int32_t left, int32_t right) const;
  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  void grow(size_t slots);
  Slot& slot_of(uint64_t key);

  std::vector<Slot> slots_;  // open addressing; the size is a power of two, at most half is used
  size_t size_ = 0;
};

// Merges `symbols` in place and shrinks the vector to what is left.
void merge_symbols(const MergeTable& merges, std::vector<int32_t>& symbols);

}  // namespace coppice
