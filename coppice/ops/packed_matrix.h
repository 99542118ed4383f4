// A weight matrix in one of the forms that the CPU kernels multiply fast.
//
// Every storage type of a model file maps into one of three forms, without loss beyond rounding:
//   k4Bit   4-bit codes with a scale, and where the type has it a minimum, per 32 values of a row
//           (per 16 for Q2_K and Q3_K): Q4_0 Q4_1 Q4_K Q2_K Q3_K
//   k8Bit   the same with 8-bit codes, a scale per 16 for Q6_K: Q5_0 Q5_1 Q8_0 Q5_K Q6_K IQ4_NL
//   kBf16   bfloat16 values, rounded to nearest even: F32 F16 BF16
// Codes are exact. Scales and minimums are held as float16 with one power of two per matrix, which
// is exact for the types that store float16 scales; for the K types, whose scales are products,
// each is rounded by at most 2^-11 of itself (2^-38 of the matrix's largest possible scale, should
// that be more). Rows are interleaved by 16, so that one load feeds 16 outputs (gemm_kernels.h
// draws it).
//
// Products: with codes, x is rounded to int16 with one scale per 32 values, an error of at most
// 2^-16 of the largest of them; products are summed in whole numbers within a scale group and in
// float32 across groups. With bfloat16 values, x stays float32 and everything is summed in float32.
// One arithmetic serves any N: the result for a row of x depends on that row alone, bit for bit,
// whatever the batch, the threads, or the way a prompt is cut into chunks. Levels of CpuLevel
// differ by float32 rounding. A NaN or infinity in x makes that row's results NaN.
//
// Immutable after pack(): share it between threads freely.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coppice/core/stored_tensor.h"

namespace coppice::ops {

enum class WeightForm { k4Bit, k8Bit, kBf16 };

// The form that pack() chooses for a storage type.
WeightForm packed_form(StorageType type);

// Bytes of a packed [rows, cols] matrix of that form, for `plan`. `type` is the stored type.
// REQUIRES: a shape that pack() takes, else throws kInvalidArgument.
int64_t packed_bytes(StorageType type, int64_t rows, int64_t cols);

class PackedMatrix final {
 public:
  // REQUIRES: two dims. Throws kInvalidArgument when the shape fits no block, or the bytes do not
  // fit the shape.
  static PackedMatrix pack(const StoredTensor& stored);

  int64_t rows() const;   // outputs
  int64_t cols() const;   // inputs
  int64_t bytes() const;  // held in memory
  WeightForm form() const;

  // x [N, cols] float32, contiguous -> [N, rows] float32: x times the transposed matrix.
  at::Tensor multiply(const at::Tensor& x) const;
  // Several matrices of equal cols times one x: x is prepared once and the work is shared out
  // once, which is faster than one multiply() after the other and gives the same bits.
  static std::vector<at::Tensor> multiply_together(std::span<const PackedMatrix* const> matrices,
                                                   const at::Tensor& x);
  // multiply() on raw memory: x [n, cols] and out [n, rows], both contiguous float32.
  void multiply(const float* x, int64_t n, float* out) const;

  // ids [N] int64 in [0, rows) -> [N, cols] float32: an embedding look-up. Throws on an id outside.
  at::Tensor gather_rows(const at::Tensor& ids) const;
  // [rows, cols] float32.
  at::Tensor dequantize() const;

 private:
  struct Data;
  explicit PackedMatrix(std::shared_ptr<const Data> data);
  static void multiply_all(std::span<const PackedMatrix* const> matrices, const float* x, int64_t n,
                           std::span<float* const> outs);

  std::shared_ptr<const Data> data_;
};

}  // namespace coppice::ops
