// Activations of the feed-forward blocks.
#pragma once

#include <ATen/core/Tensor.h>

namespace coppice::ops {

// silu(gate) * up, element by element, with silu(x) = x / (1 + exp(-x)). Equal shapes; dtype of
// gate. For contiguous float32 on the CPU without a gradient one loop writes over `gate`, whose
// memory the result then shares; with a gradient, and for bfloat16, another writes a new tensor;
// silu_mul_reference otherwise.
at::Tensor silu_mul(at::Tensor gate, const at::Tensor& up);

// The same out of ATen operations: differentiable, any dtype and device.
at::Tensor silu_mul_reference(const at::Tensor& gate, const at::Tensor& up);

// silu(x), element by element. Writes over `x` under the same conditions.
at::Tensor silu(at::Tensor x);

// log(sigmoid(z + bias)), exact to rounding also where sigmoid is close to 1. z [N, H], bias [H] or
// [1] -> [N, H] float32, or float64 for float64 input.
at::Tensor log_sigmoid(const at::Tensor& z, const at::Tensor& bias);

// The same on raw float32 memory, by the calling thread alone: x [rows, cols] becomes
// silu(x + bias), bias [cols] or null.
void silu_rows(float* x, const float* bias, int64_t rows, int64_t cols);
// z [n, heads] -> out, with bias [heads], or [1] where `one_bias`.
void log_sigmoid_rows(const float* z, const float* bias, bool one_bias, int64_t n, int64_t heads,
                      float* out);

// x [N, C] += bias [C], in place.
void add_bias(at::Tensor& x, const at::Tensor& bias);

}  // namespace coppice::ops
