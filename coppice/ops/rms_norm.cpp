#include "coppice/ops/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>

#include <cmath>
#include <cstdint>

#include "coppice/core/error.h"
#include "coppice/ops/fast_path.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

constexpr int64_t kLanes = 16;

// Sum of squares of x[0 .. size): partial sums side by side, so that the compiler can use vectors.
float sum_of_squares(const float* x, int64_t size) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * x[i + j];
  float sum = 0;
  for (; i < size; ++i) sum += x[i] * x[i];
  for (int64_t j = 0; j < kLanes; ++j) sum += lanes[j];
  return sum;
}

void normalise_row(const float* x, const float* weight, float eps, int64_t size, float* y) {
  const float mean = sum_of_squares(x, size) / static_cast<float>(size);
  const float inverse = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < size; ++i) y[i] = x[i] * inverse * weight[i];
}

void check_shapes(const at::Tensor& x, const at::Tensor& weight) {
  if (x.dim() < 1 || weight.dim() != 1 || x.size(-1) != weight.size(0))
    fail_argument("rms_norm: expected x [..., C] and weight [C], got {} dims with last {} and {}",
                  x.dim(), x.dim() < 1 ? 0 : x.size(-1), weight.numel());
}

bool can_loop(const at::Tensor& x, const at::Tensor& weight) {
  return is_plain_float(x) && is_plain_float(weight) && x.is_contiguous() && weight.is_contiguous();
}

}  // namespace

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_shapes(x, weight);
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const at::Tensor inverse = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps);
  return (wide * inverse).to(x.scalar_type()) * weight;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!can_loop(x, weight)) return rms_norm_reference(x, weight, eps);
  check_shapes(x, weight);
  at::Tensor y = at::empty_like(x);
  const int64_t size = x.size(-1);
  const int64_t rows = size == 0 ? 0 : x.numel() / size;
  const float* from = x.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  const float* scale = weight.const_data_ptr<float>();
  parallel_for(0, rows, rows_per_piece(size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      normalise_row(from + row * size, scale, static_cast<float>(eps), size, to + row * size);
  });
  return y;
}

at::Tensor add_rms_norm_(at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                         double eps) {
  if (!can_loop(x, weight) || !can_loop(delta, weight) || x.sizes() != delta.sizes()) {
    x.add_(delta);
    return rms_norm(x, weight, eps);
  }
  check_shapes(x, weight);
  at::Tensor y = at::empty_like(x);
  const int64_t size = x.size(-1);
  const int64_t rows = size == 0 ? 0 : x.numel() / size;
  float* sum = x.mutable_data_ptr<float>();
  const float* add = delta.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  const float* scale = weight.const_data_ptr<float>();
  parallel_for(0, rows, rows_per_piece(size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* sum_row = sum + row * size;
      for (int64_t i = 0; i < size; ++i) sum_row[i] += add[row * size + i];
      normalise_row(sum_row, scale, static_cast<float>(eps), size, to + row * size);
    }
  });
  return y;
}

}  // namespace coppice::ops
