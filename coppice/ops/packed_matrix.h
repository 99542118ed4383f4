// A weight matrix in one of the forms that the CPU kernels multiply fast.
//
// Every storage type of a model file maps into one of three forms, without loss beyond rounding:
//   k4Bit   4-bit codes, scale and minimum per 32 values of a row
//   k8Bit   8-bit codes, scale per 16 or 32 values of a row
//   kBf16   bfloat16 values
// Rows are interleaved by 16, so that one load feeds 16 outputs (docs/architecture.md, "Packed
// weights"). One-token and many-token products use different kernels; either treats each row of x
// by itself, so a result never depends on the other rows of a batch that takes the same kernel.
//
// Immutable after pack(): share it between threads freely.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "coppice/core/stored_tensor.h"

namespace coppice::ops {

enum class WeightForm { k4Bit, k8Bit, kBf16 };

// The form that pack() chooses for a storage type.
WeightForm packed_form(StorageType type);

// Bytes of a packed [rows, cols] matrix of that form, for `plan`. `type` is the stored type.
int64_t packed_bytes(StorageType type, int64_t rows, int64_t cols);

class PackedMatrix final {
 public:
  // REQUIRES: two dims. Throws kInvalidArgument when the shape fits no block.
  static PackedMatrix pack(const StoredTensor& stored);

  int64_t rows() const;   // outputs
  int64_t cols() const;   // inputs
  int64_t bytes() const;  // held in memory
  WeightForm form() const;

  // x [N, cols] float32, contiguous -> [N, rows] float32: x times the transposed matrix.
  at::Tensor multiply(const at::Tensor& x) const;
  // ids [N] int64 in [0, rows) -> [N, cols] float32: an embedding look-up. Throws on an id outside.
  at::Tensor gather_rows(const at::Tensor& ids) const;
  // [rows, cols] float32.
  at::Tensor dequantize() const;

 private:
  struct Data;
  std::shared_ptr<const Data> data_;
};

}  // namespace coppice::ops
