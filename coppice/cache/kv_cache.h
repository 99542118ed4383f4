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
//            log_beta   [16] float32, of a retention gate <= 0; what gates of another kind say;
//                       0 where the model has no gate
//            aux        [16] float32, one number per entry that the policy's scorer keeps; 0 at
//            first modality   [16] uint8
//
// Eviction is in place: survivors behind the new end move into the holes before it, and blocks that
// fall empty return to the pool. So the order inside a row is not by position, except that the
// entries of the pass in progress are the row's last, in order.
//
// A pass:   reserve(seq, T)  ->  append(layer, seq, ...) for every layer  ->  commit(seq)
// or, when the pass failed:  rollback(seq), after which the cache is as before reserve.
// Entries cannot be cut off a committed sequence (no truncation): what eviction took is gone, so a
// shorter history is rebuilt, or forked before it is tried.
//
// Invariants (validate() in cache/validator.h): a block belongs to one row or to the free list; no
// row holds more blocks than its length needs; positions in a row differ and are < tokens_seen. Not
// thread-safe. Device: the tensors live where CacheConfig says; block tables live on the host.
//
// Errors: unknown sequences, calls out of order and misshapen tensors throw kInvalidArgument and
// change nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "coppice/cache/block_pool.h"
#include "coppice/cache/block_table.h"
#include "coppice/cache/cache_config.h"
#include "coppice/cache/pool_tensors.h"

namespace coppice {

using SequenceId = int64_t;
struct CacheSnapshot;

// Places of one row of a sequence, row = layer x Hkv + head, rising.
struct RowDrop {
  int64_t row;
  std::span<const int32_t> places;
};

class KvCache final {
 public:
  explicit KvCache(const CacheConfig& config);  // throws kInvalidArgument, kCapacity

  const CacheConfig& config() const { return config_; }

  SequenceId add_sequence();
  // A second sequence with the same entries. Throws kCapacity, and then nothing has changed.
  // REQUIRES: no pass in progress.
  SequenceId fork(SequenceId sequence);
  void remove_sequence(SequenceId sequence);  // its blocks are free at once
  std::vector<SequenceId> sequences() const;

  // Room for `new_tokens` (at least 1) entries in every row of the sequence. False: not enough free
  // blocks, and nothing has changed. Throws kCapacity where positions would pass int32.
  [[nodiscard]] bool reserve(SequenceId sequence, int64_t new_tokens);
  // k, v [T, Hkv, D]; log_beta [T, Hkv] float32 or undefined; modality [T] uint8 or undefined.
  // T must be what was reserved. Entries take the positions tokens_seen .. tokens_seen + T - 1.
  void append(int64_t layer, SequenceId sequence, const at::Tensor& k, const at::Tensor& v,
              const at::Tensor& log_beta, const at::Tensor& modality);
  void commit(SequenceId sequence);  // tokens_seen += T. REQUIRES: every layer was appended
  // Drops what was reserved and appended since. Does nothing where no pass is in progress.
  void rollback(SequenceId sequence);

  int64_t tokens_seen(SequenceId sequence) const;     // the next entry's position
  int64_t tokens_in_pass(SequenceId sequence) const;  // reserved, not yet committed
  bool pass_complete(SequenceId sequence) const;      // every layer of the pass was appended
  int64_t entries(SequenceId sequence) const;  // over all rows, the pass in progress included
  int64_t entries_of(SequenceId sequence, uint8_t modality) const;  // looks at every entry
  int64_t blocks_in_use() const { return pool_.in_use(); }
  int64_t free_blocks() const { return pool_.free(); }
  int64_t peak_blocks() const { return pool_.peak(); }
  int64_t bytes_in_use() const { return blocks_in_use() * config_.block_bytes(); }
  int64_t bytes_bound() const { return config_.max_blocks * config_.block_bytes(); }
  int64_t peak_bytes() const { return peak_blocks() * config_.block_bytes(); }

  // One row. The pass in progress included: its entries are the last tokens_in_pass() ones.
  const BlockTable& row(SequenceId sequence, int64_t layer, int64_t head) const;
  // All rows of a sequence: row layer x Hkv + head.
  std::span<const BlockTable> rows(SequenceId sequence) const;

  // Drops from one row every entry whose flag is 0; `keep` has one flag per entry, in row order.
  // REQUIRES: no pass in progress.
  void keep(SequenceId sequence, int64_t layer, int64_t head, std::span<const uint8_t> keep);
  // Drops the entries at these places; each row stands once.
  // REQUIRES: no pass in progress.
  void drop(SequenceId sequence, std::span<const RowDrop> drops);
  // Sets aux of the row's entries from place `first` on.
  void set_aux(SequenceId sequence, int64_t layer, int64_t head, int64_t first,
               std::span<const float> values);

  // Tensors that a policy's scorer keeps of the sequence as a whole; nothing here looks into them.
  // They live, fork and end with the sequence. What a pass in progress brings waits in pass_notes,
  // which commit() and rollback() empty. A tensor is replaced, never written: forks share it.
  std::vector<at::Tensor>& notes(SequenceId sequence);
  std::vector<at::Tensor>& pass_notes(SequenceId sequence);

  // Whole pools, indexed by block id. Content of free blocks is undefined. Aux is written through
  // set_aux(), which stamps the blocks; keys and values may be written here.
  at::Tensor& keys() { return pools_.keys; }            // [blocks, D, 16]
  at::Tensor& values() { return pools_.values; }        // [blocks, 16, D]
  at::Tensor& positions() { return pools_.positions; }  // [blocks, 16] int32
  const at::Tensor& positions() const { return pools_.positions; }
  at::Tensor& log_betas() { return pools_.log_betas; }  // [blocks, 16] float32
  const at::Tensor& log_betas() const { return pools_.log_betas; }
  at::Tensor& aux() { return pools_.aux; }  // [blocks, 16] float32
  const at::Tensor& aux() const { return pools_.aux; }
  at::Tensor& modalities() { return pools_.modalities; }  // [blocks, 16] uint8

  // What the next key is rotated to. A pass takes next_rotary .. next_rotary + T - 1 and commit()
  // adds T, unless set_pass_rotary() says otherwise: of tokens with three-part positions, which do
  // not just rise by one, it gives the time part of each, and what follows the pass. Equal to the
  // original positions until then. REQUIRES: a pass in progress, nothing appended.
  int64_t next_rotary(SequenceId sequence) const;
  int64_t rotary_after_pass(SequenceId sequence) const;
  void set_pass_rotary(SequenceId sequence, std::vector<int32_t> positions, int64_t next);
  // With CacheConfig::rotary_positions alone (kInternal otherwise): what each key is rotated to,
  // and another next_rotary. REQUIRES: no pass in progress.
  at::Tensor& rotary_positions();  // [blocks, 16] int32
  void set_next_rotary(SequenceId sequence, int64_t position);

  // Copies of one row in row order, for tests, studies and reference paths.
  struct RowContent {
    at::Tensor k, v;                 // [L, D]
    std::vector<int32_t> positions;  // [L]
    std::vector<float> log_beta;     // [L]
    std::vector<float> aux;          // [L]
    std::vector<uint8_t> modality;   // [L]
  };
  RowContent read_row(SequenceId sequence, int64_t layer, int64_t head) const;

  // Keys of the row's places first .. first + count - 1 as float32. -> [count x D]
  void read_keys(SequenceId sequence, int64_t layer, int64_t head, int64_t first, int64_t count,
                 std::vector<float>& keys) const;

  // One sequence as plain tensors on the CPU, for storage outside the process.
  struct SequenceImage {
    int64_t tokens_seen = 0;
    int64_t next_rotary = 0;
    std::vector<int64_t> lengths;   // [L x Hkv]
    std::vector<at::Tensor> pools;  // in the order of PoolTensors::all(), first dimension: blocks
                                    // of all rows in order; slots behind a row's end are zero
  };
  // REQUIRES: no pass in progress. Throws kInvalidArgument where a scorer keeps notes of it.
  SequenceImage image(SequenceId sequence) const;
  // A sequence with the same entries at the same places of its rows. Throws kInvalidArgument where
  // the image fits no cache of this configuration, kCapacity where blocks are lacking; then nothing
  // has changed.
  SequenceId add_sequence(const SequenceImage& image);
  // Shapes (first dimension left out) and types of an image's pools.
  std::vector<at::Tensor> image_like() const;

  // Everything but the numbers in K and V, for validate().
  CacheSnapshot snapshot() const;

 private:
  struct Sequence {
    std::vector<BlockTable> rows;   // [L x Hkv]
    std::vector<uint8_t> appended;  // [L], of the pass in progress
    int64_t tokens_seen = 0;
    int64_t tokens_in_pass = 0;
    int64_t entries = 0;
    int64_t next_rotary = 0;
    std::vector<int32_t> pass_rotary;  // [tokens_in_pass]; empty: they rise by one
    int64_t pass_next_rotary = 0;      // with it
    std::vector<at::Tensor> notes, pass_notes;
  };

  const Sequence& find(SequenceId id) const;
  Sequence& find(SequenceId id);
  std::size_t row_index(int64_t layer, int64_t head) const;
  void check_new_entries(const Sequence& sequence, int64_t layer, const NewEntries& entries) const;
  void fill_holes(BlockTable& row, std::span<const int32_t> dropped);  // into moves_
  void check_image(const SequenceImage& image) const;
  void trim(BlockTable& row);  // gives back the blocks behind the row's length

  CacheConfig config_;
  BlockPool pool_;
  PoolTensors pools_;
  std::map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 0;
  std::vector<SlotMove> moves_;   // scratch
  std::vector<int32_t> dropped_;  // scratch
};

}  // namespace coppice
