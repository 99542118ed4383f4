// What a PackedMatrix holds, and how it is filled and read back. The layout of blocks is drawn in
// gemm_kernels.h. Not for use outside PackedMatrix and its tests.
#pragma once

#include <cstdint>
#include <memory>

#include "coppice/core/stored_tensor.h"
#include "coppice/ops/gemm_kernels.h"
#include "coppice/ops/packed_matrix.h"

namespace coppice::ops {

struct PackedData {
  WeightForm form = WeightForm::kBf16;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t block_bytes = 0;  // of 16 rows
  int64_t bytes = 0;
  std::shared_ptr<uint8_t> memory;  // packed_memory.h
  CodeBlocks codes;                 // of k4Bit and k8Bit
  Bf16Blocks values;                // of kBf16

  int64_t blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }
};

// Sizes without memory: rows, cols, block_bytes, bytes and the shapes are set. Throws
// kInvalidArgument for a shape that does not fit.
PackedData plan_packing(StorageType type, int64_t rows, int64_t cols);

// Packs on all threads. Throws as PackedMatrix::pack; kCapacity when memory does not suffice.
PackedData pack_data(const StoredTensor& stored);

// One row as float32 [cols]. REQUIRES: 0 <= row < rows.
void unpack_row(const PackedData& data, int64_t row, float* out);

}  // namespace coppice::ops
