// The KV cache: one pool of fixed-size blocks for all layers, heads and sequences.
//
// A row is one (sequence, layer, KV head). Rows are ragged: each has its own length and its own
// blocks.
//
//   row:   blocks 7, 2, 9      length 37 = 16 + 16 + 5
//   block: kBlockEntries slots of one row
//            keys       [D, 16]   dimension-major: one load is one dimension of 16 entries
//            values     [16, D]   entry-major
//            position   [16] int32   index of the token in its sequence, never renumbered
//            log_beta   [16] float32, <= 0; 0 where the model has no gate
//            aux        [16] float32, one number per entry that the policy's scorer keeps
//            modality   [16] uint8
//
// Eviction is in place: survivors behind the new end move into the holes before it, and blocks that
// fall empty return to the pool. So the order inside a row is not by position, except that the
// entries of the pass in progress are the row's last, in order.
//
// A pass:   reserve(seq, T)  ->  append(layer, seq, ...) for every layer  ->  commit(seq)
// or, when the pass failed:  rollback(seq), after which the cache is as before reserve.
//
// Invariants (validate() in cache/validator.h): a block belongs to one row or to the free list; no
// row holds more blocks than its length needs; positions in a row differ and are < tokens_seen. Not
// thread-safe. Device: the tensors live where CacheConfig says; block tables live on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "coppice/cache/block_pool.h"
#include "coppice/cache/block_table.h"

namespace coppice {

using SequenceId = int64_t;

inline constexpr int64_t kBlockEntries = 16;

struct CacheConfig {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  at::ScalarType dtype = at::kFloat;  // of keys and values: kFloat, kHalf or kBFloat16
  int64_t max_blocks = 0;             // the bound: never passed, not even for a moment
  c10::Device device = c10::Device(c10::kCPU);

  int64_t num_rows() const { return num_layers * num_kv_heads; }  // of one sequence
  int64_t entry_bytes() const;  // K, V and the metadata of one slot
  int64_t block_bytes() const { return entry_bytes() * kBlockEntries; }
};

// Blocks that hold `entries` in all, however they are spread over `rows` rows.
int64_t blocks_for_entries(int64_t entries, int64_t rows);

class KvCache final {
 public:
  explicit KvCache(const CacheConfig& config);  // throws kInvalidArgument, kCapacity

  const CacheConfig& config() const;

  SequenceId add_sequence();
  // A second sequence with the same entries. Throws kCapacity, and then nothing has changed.
  SequenceId fork(SequenceId sequence);
  void remove_sequence(SequenceId sequence);  // its blocks are free at once
  std::vector<SequenceId> sequences() const;

  // Room for `new_tokens` entries in every row of the sequence. False: not enough free blocks, and
  // nothing has changed.
  [[nodiscard]] bool reserve(SequenceId sequence, int64_t new_tokens);
  // k, v [T, Hkv, D]; log_beta [T, Hkv] float32 or undefined; modality [T] uint8 or undefined.
  // T must be what was reserved. Entries take the positions tokens_seen .. tokens_seen + T - 1.
  void append(int64_t layer, SequenceId sequence, const at::Tensor& k, const at::Tensor& v,
              const at::Tensor& log_beta, const at::Tensor& modality);
  void commit(SequenceId sequence);    // tokens_seen += T
  void rollback(SequenceId sequence);  // drops what was reserved and appended since

  int64_t tokens_seen(SequenceId sequence) const;     // the next entry's position
  int64_t tokens_in_pass(SequenceId sequence) const;  // reserved, not yet committed
  int64_t entries(SequenceId sequence) const;  // over all rows, the pass in progress included
  int64_t blocks_in_use() const;
  int64_t free_blocks() const;
  int64_t peak_blocks() const;
  int64_t bytes_in_use() const;  // blocks_in_use x block_bytes
  int64_t bytes_bound() const;   // max_blocks x block_bytes
  int64_t peak_bytes() const;

  // One row. The pass in progress included: its entries are the last tokens_in_pass() ones.
  const BlockTable& row(SequenceId sequence, int64_t layer, int64_t head) const;

  // Drops from one row every entry whose flag is 0; `keep` has one flag per entry, in row order.
  void keep(SequenceId sequence, int64_t layer, int64_t head, std::span<const uint8_t> keep);

  // Whole pools, indexed by block id. Content of free blocks is undefined.
  at::Tensor& keys();        // [blocks, D, 16]
  at::Tensor& values();      // [blocks, 16, D]
  at::Tensor& positions();   // [blocks, 16] int32
  at::Tensor& log_betas();   // [blocks, 16] float32
  at::Tensor& aux();         // [blocks, 16] float32
  at::Tensor& modalities();  // [blocks, 16] uint8

  // Copies of one row in row order, for tests, studies and reference paths.
  struct RowContent {
    at::Tensor k, v;                 // [L, D]
    std::vector<int32_t> positions;  // [L]
    std::vector<float> log_beta;     // [L]
    std::vector<float> aux;          // [L]
    std::vector<uint8_t> modality;   // [L]
  };
  RowContent read_row(SequenceId sequence, int64_t layer, int64_t head) const;
};

}  // namespace coppice
