#include "coppice/ops/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <cstdint>

#include "coppice/core/error.h"
#include "coppice/ops/fast_path.h"
#include "coppice/ops/parallel.h"
#include "coppice/ops/row_loops.h"

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

// Sum of a b c, or of a b where c is a: as above.
template <typename T>
[[gnu::always_inline]] inline float sum_of_products(const T* a, const T* b, const T* c,
                                                    int64_t size) {
  float lanes[kLanes] = {};
  const auto at = [=](int64_t i) __attribute__((always_inline)) {
    return widen(a[i]) * widen(b[i]) * (c == a ? 1.0f : widen(c[i]));
  };
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += at(i + j);
  float sum = 0;
  for (; i < size; ++i) sum += at(i);
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

// Rows in float32, with the roundings of rms_norm_reference; the frozen weight gets no gradient.
struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, double eps) {
    const int64_t size = x.size(-1);
    const int64_t rows = size == 0 ? 0 : x.numel() / size;
    const at::Tensor y = at::empty_like(x);
    const at::Tensor inverse = at::empty({rows}, at::kFloat);
    const auto small = static_cast<float>(eps);
    with_element(x, [&](auto zero) {
      using T = decltype(zero);
      const T *const from = read<T>(x), *const w = read<T>(weight);
      T* const to = write<T>(y);
      float* const factor = write<float>(inverse);
      for_rows(
          rows, size, [=](int64_t begin, int64_t end) __attribute__((always_inline)) {
            for (int64_t row = begin; row < end; ++row) {
              const T* const in = from + row * size;
              const float mean = sum_of_products(in, in, in, size) / static_cast<float>(size);
              factor[row] = 1.0f / std::sqrt(mean + small);
              for (int64_t i = 0; i < size; ++i)
                to[row * size + i] =
                    narrow<T>(widen(narrow<T>(widen(in[i]) * factor[row])) * widen(w[i]));
            }
          });
    });
    ctx->save_for_backward({x, weight, inverse});
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& given) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const at::Tensor gradient = given[0].contiguous();
    const int64_t size = saved[0].size(-1);
    const at::Tensor slope = at::empty_like(saved[0]);
    with_element(slope, [&](auto zero) {
      using T = decltype(zero);
      const T *const from = read<T>(saved[0]), *const w = read<T>(saved[1]);
      const T* const up = read<T>(gradient);
      const float* const factor = read<float>(saved[2]);
      T* const to = write<T>(slope);
      for_rows(
          saved[2].numel(), size, [=](int64_t begin, int64_t end) __attribute__((always_inline)) {
            for (int64_t row = begin; row < end; ++row) {
              const T *const in = from + row * size, *const g = up + row * size;
              const float f = factor[row];
              const float pull = sum_of_products(in, g, w, size) * f * f / float(size);
              for (int64_t i = 0; i < size; ++i)
                to[row * size + i] =
                    narrow<T>(f * (widen(g[i]) * widen(w[i]) - widen(in[i]) * pull));
            }
          });
    });
    return {slope, at::Tensor(), at::Tensor()};
  }
};

bool can_record(const at::Tensor& x, const at::Tensor& weight) {
  return has_row_loops(x) && has_row_loops(weight) && x.scalar_type() == weight.scalar_type() &&
         !records_gradient(weight);
}

}  // namespace

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_shapes(x, weight);
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const at::Tensor inverse = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps);
  return (wide * inverse).to(x.scalar_type()) * weight;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_shapes(x, weight);
  if (!can_loop(x, weight))
    return can_record(x, weight) ? RmsNormFunction::apply(x, weight, eps)
                                 : rms_norm_reference(x, weight, eps);
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
