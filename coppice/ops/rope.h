// Rotary position embedding, in the rotate-halves layout: dimension i pairs with i + D/2.
//
//   y[i]       = x[i] cos a_i - x[i + D/2] sin a_i          a_i = position * inv_freq[i]
//   y[i + D/2] = x[i + D/2] cos a_i + x[i] sin a_i          i < D/2
//
// Frequencies and angles are rounded to float32 where the reference implementation (transformers)
// rounds them: at position 60,000 another rounding moves an angle by 0.002.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace coppice::ops {

// -> [D/2] float32: theta^(-2i/D). Throws kInvalidArgument unless head_dim is even and > 0.
at::Tensor rope_frequencies(double theta, int64_t head_dim);

// Positions divided by `factor`.
at::Tensor scale_rope_linear(const at::Tensor& inv_freq, double factor);

struct Llama3Scaling {
  double factor;
  double low_freq_factor;
  double high_freq_factor;
  int64_t original_max_position_embeddings;
};

// Llama 3: wavelengths above original / low are stretched by `factor`, those below original / high
// stay, those in between are blended.
at::Tensor scale_rope_llama3(const at::Tensor& inv_freq, const Llama3Scaling& scaling);

// cos and sin of every token's angles, made once per pass and used by all layers.
struct RopeAngles {
  at::Tensor cos;  // [N, D/2]
  at::Tensor sin;  // [N, D/2]
};

// Immutable: share it between threads freely.
class RopeTable final {
 public:
  // inv_freq [D/2] float32. `axis_of_frequency` [D/2], of three-part positions: which of time (0),
  // height (1) and width (2) turns each frequency. Empty for models with one-part positions.
  explicit RopeTable(const at::Tensor& inv_freq, std::vector<int64_t> axis_of_frequency = {});

  const at::Tensor& inv_freq() const { return inv_freq_; }
  int64_t head_dim() const { return 2 * inv_freq_.numel(); }

  // positions [N], or [3, N] where the table has axes; int64. The result has the given dtype
  // (float32 or float64). Throws kInvalidArgument on another shape.
  RopeAngles angles(const at::Tensor& positions, at::ScalarType dtype) const;
  // The angles themselves, not rounded: [N, D/2] float64.
  at::Tensor turns(const at::Tensor& positions) const;

  // Turns keys that sit at some position on by `delta` [N]: x [N, H, D] -> [N, H, D].
  at::Tensor rotate(const at::Tensor& x, const at::Tensor& delta) const;

 private:
  // [N] -> [N, 1]; [3, N] -> [N, D/2]
  at::Tensor spread(const at::Tensor& positions) const;

  at::Tensor inv_freq_;
  std::vector<int64_t> axis_of_frequency_;
  at::Tensor axis_;  // [D/2] int64; undefined without axes
};

// x [N, H, D] -> [N, H, D]. For contiguous float32 on the CPU without a gradient one loop writes
// over `x`, whose memory the result then shares; with a gradient, and for bfloat16, another writes
// a new tensor; apply_rope_reference otherwise.
at::Tensor apply_rope(at::Tensor x, const RopeAngles& angles);

// The same out of ATen operations: differentiable, any dtype and device.
at::Tensor apply_rope_reference(const at::Tensor& x, const RopeAngles& angles);

}  // namespace coppice::ops
