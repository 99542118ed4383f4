#include "coppice/ops/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numbers>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/ops/fast_path.h"
#include "coppice/ops/parallel.h"
#include "coppice/ops/row_loops.h"

namespace coppice::ops {
namespace {

void rotate_row(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float low = x[i];
    const float high = x[i + half];
    x[i] = low * cos[i] - high * sin[i];
    x[i + half] = high * cos[i] + low * sin[i];
  }
}

void check_shapes(const at::Tensor& x, const RopeAngles& angles) {
  if (x.dim() != 3 || x.size(0) != angles.cos.size(0) || x.size(2) != 2 * angles.cos.size(1))
    fail_argument("rope: expected x [{}, H, {}], got {} dims with {} values", angles.cos.size(0),
                  2 * angles.cos.size(1), x.dim(), x.numel());
}

}  // namespace

at::Tensor rope_frequencies(double theta, int64_t head_dim) {
  if (head_dim <= 0 || head_dim % 2 != 0)
    fail_argument("rope: head_dim must be even and above 0, got {}", head_dim);
  if (!(theta > 0)) fail_argument("rope: theta must be above 0, got {}", theta);
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
  return at::reciprocal(at::pow(theta, exponents));
}

at::Tensor scale_rope_linear(const at::Tensor& inv_freq, double factor) {
  if (!(factor > 0)) fail_argument("rope: factor must be above 0, got {}", factor);
  return inv_freq / factor;
}

at::Tensor scale_rope_llama3(const at::Tensor& inv_freq, const Llama3Scaling& scaling) {
  const double low = scaling.low_freq_factor;
  const double high = scaling.high_freq_factor;
  if (!(scaling.factor > 0) || !(low > 0) || !(high > low) ||
      scaling.original_max_position_embeddings <= 0)
    fail_argument(
        "rope llama3: expected factor > 0, 0 < low_freq_factor < high_freq_factor and "
        "original_max_position_embeddings > 0, got {}, {}, {}, {}",
        scaling.factor, low, high, scaling.original_max_position_embeddings);
  const auto length = static_cast<double>(scaling.original_max_position_embeddings);
  const at::Tensor wavelength = at::reciprocal(inv_freq) * (2 * std::numbers::pi);
  const at::Tensor share = (at::reciprocal(wavelength) * length - low) / (high - low);
  const at::Tensor blended = (1 - share) * inv_freq / scaling.factor + share * inv_freq;
  const at::Tensor by_low =
      at::where(wavelength > length / low, inv_freq / scaling.factor, blended);
  return at::where(wavelength < length / high, inv_freq, by_low);
}

RopeTable::RopeTable(const at::Tensor& inv_freq, std::vector<int64_t> axis_of_frequency)
    : inv_freq_(inv_freq.to(at::kFloat).contiguous()),
      axis_of_frequency_(std::move(axis_of_frequency)) {
  if (inv_freq_.dim() != 1 || inv_freq_.numel() == 0)
    fail_argument("rope: expected frequencies [D/2], got {} dims with {} values", inv_freq_.dim(),
                  inv_freq_.numel());
  if (axis_of_frequency_.empty()) return;
  if (static_cast<int64_t>(axis_of_frequency_.size()) != inv_freq_.numel())
    fail_argument("rope: expected {} axes, one per frequency, got {}", inv_freq_.numel(),
                  axis_of_frequency_.size());
  for (int64_t axis : axis_of_frequency_)
    if (axis < 0 || axis > 2) fail_argument("rope: an axis is 0, 1 or 2, got {}", axis);
  axis_ = at::tensor(axis_of_frequency_, at::kLong);
}

at::Tensor RopeTable::spread(const at::Tensor& positions) const {
  const bool three_part = positions.dim() == 2 && positions.size(0) == 3 && axis_.defined();
  if (positions.dim() != 1 && !three_part)
    fail_argument("rope: expected positions [N]{}, got {} dims with {} values",
                  axis_.defined() ? " or [3, N]" : "", positions.dim(), positions.numel());
  return three_part ? positions.index_select(0, axis_.to(positions.device())).t().contiguous()
                    : positions.unsqueeze(1);
}

RopeAngles RopeTable::angles(const at::Tensor& positions, at::ScalarType dtype) const {
  const at::Tensor inv_freq = inv_freq_.to(positions.device());
  const at::Tensor angle = (spread(positions).to(at::kFloat) * inv_freq).to(dtype);
  return {angle.cos(), angle.sin()};
}

at::Tensor RopeTable::turns(const at::Tensor& positions) const {
  return spread(positions).to(at::kDouble) * inv_freq_.to(positions.device(), at::kDouble);
}

at::Tensor RopeTable::rotate(const at::Tensor& x, const at::Tensor& delta) const {
  const at::ScalarType dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return apply_rope_reference(x, angles(delta, dtype));
}

at::Tensor apply_rope_reference(const at::Tensor& x, const RopeAngles& angles) {
  check_shapes(x, angles);
  const int64_t half = x.size(2) / 2;
  const at::Tensor low = x.narrow(2, 0, half);
  const at::Tensor high = x.narrow(2, half, half);
  const at::Tensor cos = angles.cos.unsqueeze(1);
  const at::Tensor sin = angles.sin.unsqueeze(1);
  return at::cat({low * cos - high * sin, high * cos + low * sin}, 2).to(x.scalar_type());
}

namespace {

// x turned by the angles, or back.
at::Tensor turn(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                bool back) {
  const int64_t heads = x.size(1), half = x.size(2) / 2;
  const at::Tensor y = at::empty_like(x);
  const float *const cos = read<float>(cosines), *const sin = read<float>(sines);
  const float sign = back ? -1.0f : 1.0f;
  with_element(x, [&](auto zero) {
    using T = decltype(zero);
    const T* const from = read<T>(x);
    T* const to = write<T>(y);
    for_rows(
        x.size(0),
        heads * 2 * half, [=](int64_t begin, int64_t end) __attribute__((always_inline)) {
          for (int64_t row = begin * heads; row < end * heads; ++row) {
            const T *const low = from + row * 2 * half, *const high = low + half;
            T* const out = to + row * 2 * half;
            const float *const c = cos + row / heads * half, *const s = sin + row / heads * half;
            for (int64_t i = 0; i < half; ++i) {
              const float turned = sign * s[i];
              out[i] = narrow<T>(widen(low[i]) * c[i] - widen(high[i]) * turned);
              out[half + i] = narrow<T>(widen(high[i]) * c[i] + widen(low[i]) * turned);
            }
          }
        });
  });
  return y;
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& cos, const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return turn(x, cos, sin, false);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& given) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    return {turn(given[0].contiguous(), saved[0], saved[1], true), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor apply_rope(at::Tensor x, const RopeAngles& angles) {
  const auto plain = [](const at::Tensor& t) { return is_plain_float(t) && t.is_contiguous(); };
  if (!plain(x) && has_row_loops(x) && plain(angles.cos) && plain(angles.sin)) {
    check_shapes(x, angles);
    return RopeFunction::apply(x, angles.cos, angles.sin);
  }
  if (!is_plain_float(x) || !is_plain_float(angles.cos) || !x.is_contiguous())
    return apply_rope_reference(x, angles);
  check_shapes(x, angles);
  const int64_t heads = x.size(1);
  const int64_t half = x.size(2) / 2;
  float* to = x.mutable_data_ptr<float>();
  const float* cos = angles.cos.const_data_ptr<float>();
  const float* sin = angles.sin.const_data_ptr<float>();
  parallel_for(0, x.size(0), rows_per_piece(heads * 2 * half), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      for (int64_t h = 0; h < heads; ++h)
        rotate_row(to + (n * heads + h) * 2 * half, cos + n * half, sin + n * half, half);
  });
  return x;
}

}  // namespace coppice::ops
