#include "coppice/ops/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "coppice/core/error.h"
#include "coppice/ops/cpu_features.h"
#include "coppice/ops/fast_path.h"
#include "coppice/ops/parallel.h"
#include "coppice/ops/row_loops.h"

namespace coppice::ops {
namespace {

// exp(x) within 2 units in the last place for |x| < 87, clamped outside: 2^n times a polynomial in
// the remainder r = x - n ln 2, |r| <= ln 2 / 2. Branch-free, so that loops over it vectorise.
[[gnu::always_inline]] inline float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 87.0f ? 87.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 x 2^23: adding it rounds to a whole number
  const float n = (x * 1.44269504f + kRound) - kRound;
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  return p * std::bit_cast<float>(bits);
}

// Without `up`, silu alone.
[[gnu::always_inline]] inline void silu_mul_loop(float* gate, const float* up, int64_t size) {
  if (up == nullptr) {
    for (int64_t i = 0; i < size; ++i) gate[i] = gate[i] / (1.0f + fast_exp(-gate[i]));
    return;
  }
  for (int64_t i = 0; i < size; ++i) gate[i] = gate[i] / (1.0f + fast_exp(-gate[i])) * up[i];
}

void silu_mul_portable(float* gate, const float* up, int64_t size) {
  silu_mul_loop(gate, up, size);
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void silu_mul_avx2(float* gate, const float* up, int64_t size) {
  silu_mul_loop(gate, up, size);
}
[[gnu::target("avx512f,prefer-vector-width=512")]] void silu_mul_avx512(float* gate,
                                                                        const float* up,
                                                                        int64_t size) {
  silu_mul_loop(gate, up, size);
}
#endif

using SiluMul = void (*)(float*, const float*, int64_t);

SiluMul choose_silu_mul() {
#if defined(__x86_64__)
  if (cpu_level() >= CpuLevel::kAvx512) return silu_mul_avx512;
  if (cpu_level() >= CpuLevel::kAvx2) return silu_mul_avx2;
#endif
  return silu_mul_portable;
}

SiluMul silu_mul_kernel() {
  static const SiluMul kernel = choose_silu_mul();
  return kernel;
}

// gate = silu(gate), times `up` unless that is null.
void silu_in_place(at::Tensor& gate, const float* up) {
  const SiluMul run = silu_mul_kernel();
  float* to = gate.mutable_data_ptr<float>();
  constexpr int64_t kPieceValues = 4096;  // about a microsecond
  parallel_for(0, gate.numel(), kPieceValues, [&](int64_t begin, int64_t end) {
    run(to + begin, up == nullptr ? nullptr : up + begin, end - begin);
  });
}

struct SiluMulFunction : torch::autograd::Function<SiluMulFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& gate,
                            const at::Tensor& up) {
    const at::Tensor y = at::empty_like(gate);
    with_element(gate, [&](auto zero) {
      using T = decltype(zero);
      const T *const g = read<T>(gate), *const u = read<T>(up);
      T* const to = write<T>(y);
      for_rows(
          gate.numel(), 1, [=](int64_t begin, int64_t end) __attribute__((always_inline)) {
            for (int64_t i = begin; i < end; ++i) {
              const float x = widen(g[i]);
              to[i] = narrow<T>(x / (1.0f + fast_exp(-x)) * widen(u[i]));
            }
          });
    });
    ctx->save_for_backward({gate, up});
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& given) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const at::Tensor gradient = given[0].contiguous();
    const at::Tensor to_gate = at::empty_like(saved[0]), to_up = at::empty_like(saved[1]);
    with_element(gradient, [&](auto zero) {
      using T = decltype(zero);
      const T *const g = read<T>(saved[0]), *const u = read<T>(saved[1]);
      const T* const pull = read<T>(gradient);
      T *const out_gate = write<T>(to_gate), *const out_up = write<T>(to_up);
      for_rows(
          gradient.numel(), 1, [=](int64_t begin, int64_t end) __attribute__((always_inline)) {
            for (int64_t i = begin; i < end; ++i) {
              const float x = widen(g[i]), d = widen(pull[i]);
              const float share = 1.0f / (1.0f + fast_exp(-x));
              out_gate[i] = narrow<T>(d * widen(u[i]) * share * (1.0f + x * (1.0f - share)));
              out_up[i] = narrow<T>(d * x * share);
            }
          });
    });
    return {to_gate, to_up};
  }
};

}  // namespace

at::Tensor silu_mul_reference(const at::Tensor& gate, const at::Tensor& up) {
  return at::silu(gate) * up;
}

at::Tensor silu_mul(at::Tensor gate, const at::Tensor& up) {
  if (gate.sizes() != up.sizes())
    fail_argument("silu_mul: gate and up differ in shape: {} and {} values", gate.numel(),
                  up.numel());
  if (!is_plain_float(gate) || !is_plain_float(up) || !gate.is_contiguous() || !up.is_contiguous())
    return has_row_loops(gate) && has_row_loops(up) && gate.scalar_type() == up.scalar_type()
               ? SiluMulFunction::apply(gate, up)
               : silu_mul_reference(gate, up);
  silu_in_place(gate, up.const_data_ptr<float>());
  return gate;
}

at::Tensor silu(at::Tensor x) {
  if (!is_plain_float(x) || !x.is_contiguous()) return at::silu(x);
  silu_in_place(x, nullptr);
  return x;
}

at::Tensor log_sigmoid(const at::Tensor& z, const at::Tensor& bias) {
  const int64_t heads = z.dim() == 2 ? z.size(1) : 0;
  if (z.dim() != 2 || bias.dim() != 1 || (bias.size(0) != heads && bias.size(0) != 1))
    fail_argument("log_sigmoid: expected z [N, H] and bias [H] or [1], got {} and {} values",
                  z.numel(), bias.numel());
  if (!is_plain_float(z) || !is_plain_float(bias) || !z.is_contiguous() || !bias.is_contiguous()) {
    const at::Tensor wide = z.scalar_type() == at::kDouble ? z : z.to(at::kFloat);
    return at::log_sigmoid(wide + bias);
  }
  at::Tensor result = at::empty_like(z);
  log_sigmoid_rows(z.const_data_ptr<float>(), bias.const_data_ptr<float>(), bias.size(0) == 1,
                   z.size(0), heads, result.mutable_data_ptr<float>());
  return result;
}

void silu_rows(float* x, const float* bias, int64_t rows, int64_t cols) {
  if (bias != nullptr) {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < cols; ++i) x[row * cols + i] += bias[i];
  }
  silu_mul_kernel()(x, nullptr, rows * cols);
}

void log_sigmoid_rows(const float* z, const float* bias, bool one_bias, int64_t n, int64_t heads,
                      float* out) {
  for (int64_t i = 0; i < n * heads; ++i) {
    const float value = z[i] + bias[one_bias ? 0 : i % heads];
    out[i] = std::min(value, 0.0f) - std::log1p(std::exp(-std::abs(value)));
  }
}

void add_bias(at::Tensor& x, const at::Tensor& bias) {
  if (!is_plain_float(x) || !is_plain_float(bias) || !x.is_contiguous() || !bias.is_contiguous() ||
      x.dim() != 2 || bias.numel() != x.size(1)) {
    x.add_(bias);
    return;
  }
  const int64_t cols = x.size(1);
  float* to = x.mutable_data_ptr<float>();
  const float* add = bias.const_data_ptr<float>();
  parallel_for(0, x.size(0), rows_per_piece(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i < cols; ++i) to[row * cols + i] += add[i];
  });
}

}  // namespace coppice::ops
