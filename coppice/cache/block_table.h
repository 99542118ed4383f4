// The blocks and the length of one row.
#pragma once

#include <cstdint>
#include <vector>

#include "coppice/cache/cache_config.h"

namespace coppice {

struct BlockTable {
  std::vector<int32_t> blocks;  // in row order; entry i sits in blocks[i / 16], slot i % 16
  std::vector<uint64_t> stamps =
      {};              // [blocks]: when its entries' metadata was last written; see below
  int64_t length = 0;  // entries held

  // Notes that entries first .. last - 1 were written. No two calls in a process share a stamp, so
  // equal stamps mean equal metadata, also after a fork.
  void stamp(int64_t first, int64_t last);

  // Where entry `index` sits in a pool seen as [blocks x 16].
  int64_t slot(int64_t index) const {
    return int64_t{blocks[static_cast<std::size_t>(index / kBlockEntries)]} * kBlockEntries +
           index % kBlockEntries;
  }
};

// Blocks that a row of `entries` needs.
inline int64_t blocks_for_row(int64_t entries) {
  return (entries + kBlockEntries - 1) / kBlockEntries;
}

// Calls visit(slot, index, count) for each longest run of entries first .. last - 1 that lies in
// one piece in the pools: entries index .. index + count - 1 sit at slot .. slot + count - 1.
template <typename Visit>
void for_each_run(const BlockTable& table, int64_t first, int64_t last, Visit&& visit) {
  while (first < last) {
    const int64_t slot = table.slot(first);
    std::size_t block = static_cast<std::size_t>(first / kBlockEntries);
    int64_t end = (static_cast<int64_t>(block) + 1) * kBlockEntries;
    while (end < last && table.blocks[block + 1] == table.blocks[block] + 1) {
      ++block;
      end += kBlockEntries;
    }
    if (end > last) end = last;
    visit(slot, first, end - first);
    first = end;
  }
}

}  // namespace coppice
