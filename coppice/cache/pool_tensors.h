// The tensors behind a KV cache, and the few operations that touch their slots.
//
// A slot is named by one number: block x 16 + place in the block. On the CPU each pool is a
// reservation of address space: pages that were never written cost nothing, and whole pages of free
// blocks go back to the system with release(). Functions named *_reference do the same through
// tensor operations, on any device; the others are for the CPU and fall back to them elsewhere.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/cache/block_table.h"
#include "coppice/cache/cache_config.h"

namespace coppice {

struct PoolTensors {
  at::Tensor keys;        // [blocks, D, 16]
  at::Tensor values;      // [blocks, 16, D]
  at::Tensor positions;   // [blocks, 16] int32
  at::Tensor log_betas;   // [blocks, 16] float32
  at::Tensor aux;         // [blocks, 16] float32
  at::Tensor modalities;  // [blocks, 16] uint8
  at::Tensor rotary;      // [blocks, 16] int32; undefined unless CacheConfig::rotary_positions

  // All that are defined.
  std::vector<at::Tensor*> all();
};

// Throws kCapacity where the memory cannot be had; without CacheConfig::resident that may show only
// when it is used.
PoolTensors allocate_pools(const CacheConfig& config);

// The new entries of one layer; undefined log_beta and modality mean zeros.
struct NewEntries {
  at::Tensor k, v;      // [T, Hkv, D]
  at::Tensor log_beta;  // [T, Hkv]
  at::Tensor modality;  // [T]
  int64_t first_position = 0;
  int64_t first_rotary = 0;              // unused where the pool keeps none
  std::span<const int32_t> rotary = {};  // [T], where they do not just rise by one
};

// Writes entry t of head h to place rows[h].length + t of that row, aux 0. The rows' blocks must
// reach that far; their lengths are not changed.
void write_entries(PoolTensors& pools, std::span<const BlockTable> rows, const NewEntries& entries);
void write_entries_reference(PoolTensors& pools, std::span<const BlockTable> rows,
                             const NewEntries& entries);

// Keys of entries first .. first + count - 1 of a row as float32. out [count, D].
void read_keys(const PoolTensors& pools, const BlockTable& row, int64_t first, int64_t count,
               float* out);

struct SlotMove {
  int64_t from, to;
};

// Copies whole entries. No slot may be both a source and a target.
void move_entries(PoolTensors& pools, std::span<const SlotMove> moves);
void move_entries_reference(PoolTensors& pools, std::span<const SlotMove> moves);

// Copies block from[i] to block to[i].
void copy_blocks(PoolTensors& pools, std::span<const int32_t> from, std::span<const int32_t> to);

// Gives the pages that lie inside blocks first .. last - 1 back to the system. Their content
// becomes zeros. Does nothing where the device has no such call.
void release_blocks(PoolTensors& pools, int64_t first, int64_t last);

}  // namespace coppice
