// Root-mean-square normalisation: y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension.
#pragma once

#include <ATen/core/Tensor.h>

namespace coppice::ops {

// x [..., C], weight [C] -> [..., C], dtype of x. The mean is taken in float32 (float64 for float64
// input). On the CPU one loop without temporaries for contiguous float32 and bfloat16, also with a
// gradient, provided that it does not reach the weight; rms_norm_reference otherwise.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The same out of ATen operations: differentiable, any dtype and device.
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps);

// x += delta in place, then rms_norm(x): the end of one block and the start of the next in one
// pass. REQUIRES: no gradient is recorded. x, delta [N, C].
at::Tensor add_rms_norm_(at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                         double eps);

}  // namespace coppice::ops
