// Checks the invariants of a KV cache on a plain copy of its state. Pure: it reads no cache and
// touches no tensor, so tests can hand it any corruption.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coppice {

struct CacheSnapshot {
  struct Row {
    int64_t length = 0;
    std::vector<int32_t> blocks;
    std::vector<int32_t> positions;  // [length], in row order
    bool appended = false;           // holds the entries of the pass in progress
  };
  struct Sequence {
    int64_t id = 0;
    int64_t tokens_seen = 0;
    int64_t tokens_in_pass = 0;
    int64_t entries = 0;    // what the cache says it holds
    std::vector<Row> rows;  // row layer x Hkv + head
  };
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t max_blocks = 0;
  int64_t blocks_in_use = 0;
  int64_t peak_blocks = 0;
  std::vector<uint8_t> taken;  // [max_blocks], 1 where the pool says in use
  std::vector<Sequence> sequences;
};

// One line per fault; empty where all holds.
std::vector<std::string> validate(const CacheSnapshot& snapshot);

}  // namespace coppice
