// Sizes of a KV cache, and what they cost.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace coppice {

inline constexpr int64_t kBlockEntries = 16;

struct CacheConfig {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  at::ScalarType dtype =
      at::kFloat;          // of keys and values: kFloat, kHalf, kBFloat16; kDouble: tests
  int64_t max_blocks = 0;  // the bound: never passed, not even for a moment
  c10::Device device = c10::Device(c10::kCPU);
  // Keep one more int32 per slot: the position that the key is rotated to, where it can differ from
  // the original one (attention/compact_positions.h).
  bool rotary_positions = false;
  // On the CPU: have all memory from the start and keep it, so that no pass waits for the system to
  // find and clear pages. Else it comes with the first use of a block, and goes again.
  bool resident = false;

  int64_t num_rows() const { return num_layers * num_kv_heads; }  // of one sequence
  int64_t entry_bytes() const;  // K, V and the metadata of one slot
  int64_t block_bytes() const { return entry_bytes() * kBlockEntries; }
};

// Throws kInvalidArgument for sizes below 1 or too large to count in int64, and for other dtypes.
// max_blocks is looked at only where `with_blocks`.
void validate(const CacheConfig& config, bool with_blocks = true);

// Most blocks that `entries` in all can need, however they are spread over `rows` rows: an entry
// alone in its block where there are few, at most 15 empty slots per row where there are many.
int64_t blocks_for_entries(int64_t entries, int64_t rows);

}  // namespace coppice
