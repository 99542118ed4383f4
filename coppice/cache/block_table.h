// The blocks and the length of one row.
#pragma once

#include <cstdint>
#include <vector>

namespace coppice {

struct BlockTable {
  std::vector<int32_t> blocks;  // in row order; entry i sits in blocks[i / 16], slot i % 16
  int64_t length = 0;           // entries held
};

}  // namespace coppice
