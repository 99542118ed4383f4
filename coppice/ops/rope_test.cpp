#include "coppice/ops/rope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "coppice/core/error.h"
#include "coppice/ops/cpu_features.h"
#include "coppice/ops/gradient_testing.h"

namespace coppice::ops {
namespace {

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(Rope, frequencies_are_powers_of_theta) {
  const at::Tensor frequencies = rope_frequencies(10000.0, 8);
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_NEAR(frequencies[i].item<double>(), std::pow(10000.0, -2.0 * i / 8), 1e-7);
  EXPECT_THROW(rope_frequencies(10000.0, 7), Error);
  EXPECT_THROW(rope_frequencies(10000.0, 0), Error);
  EXPECT_THROW(rope_frequencies(0.0, 8), Error);
}

TEST(Rope, llama3_scaling_keeps_high_and_stretches_low_frequencies) {
  const double length = 8192;
  const at::Tensor plain = rope_frequencies(500000.0, 128);
  const at::Tensor scaled = scale_rope_llama3(plain, {8.0, 1.0, 4.0, 8192});
  int64_t kept = 0, stretched = 0, blended = 0;
  for (int64_t i = 0; i < plain.numel(); ++i) {
    const double f = plain[i].item<double>();
    const double wavelength = 2 * std::numbers::pi / f;
    double wanted = f;
    if (wavelength > length) {
      wanted = f / 8;
      ++stretched;
    } else if (wavelength >= length / 4) {
      const double share = (length / wavelength - 1) / 3;
      wanted = (1 - share) * f / 8 + share * f;
      ++blended;
    } else {
      ++kept;
    }
    EXPECT_NEAR(scaled[i].item<double>() / wanted, 1.0, 1e-6) << i;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
  EXPECT_GT(blended, 0);
  EXPECT_THROW(scale_rope_llama3(plain, {8.0, 4.0, 4.0, 8192}), Error);
  EXPECT_THROW(scale_rope_llama3(plain, {0.0, 1.0, 4.0, 8192}), Error);
}

TEST(Rope, linear_scaling_divides_positions) {
  const at::Tensor plain = rope_frequencies(10000.0, 16);
  const RopeTable scaled(scale_rope_linear(plain, 4.0));
  const RopeTable unscaled(plain);
  const at::Tensor positions = at::arange(0, 40, 4, at::kLong);
  EXPECT_LE(largest_difference(scaled.angles(positions, at::kFloat).cos,
                               unscaled.angles(at::arange(10, at::kLong), at::kFloat).cos),
            1e-6);
}

TEST(Rope, fast_path_equals_reference) {
  const RopeTable table(rope_frequencies(10000.0, 16));
  for (int64_t tokens : {1, 3, 700}) {
    const at::Tensor x = at::randn({tokens, 5, 16});
    const RopeAngles angles = table.angles(at::randint(0, 60000, {tokens}, at::kLong), at::kFloat);
    const at::Tensor wanted = apply_rope_reference(x, angles);
    EXPECT_LE(largest_difference(apply_rope(x.clone(), angles), wanted), 1e-6);
  }
}

TEST(Rope, products_depend_on_distance_alone) {
  const RopeTable table(rope_frequencies(10000.0, 32));
  const at::Tensor q = at::randn({1, 1, 32}, at::kDouble);
  const at::Tensor k = at::randn({1, 1, 32}, at::kDouble);
  const auto product = [&](int64_t query, int64_t key) {
    const auto at_position = [&](const at::Tensor& x, int64_t position) {
      return apply_rope_reference(x, table.angles(at::full({1}, position, at::kLong), at::kDouble));
    };
    return (at_position(q, query) * at_position(k, key)).sum().item<double>();
  };
  EXPECT_NEAR(product(17, 5), product(112, 100), 1e-4);
  EXPECT_GT(std::abs(product(17, 5) - product(17, 9)), 1e-3);
}

TEST(Rope, rotate_moves_keys_on) {
  const RopeTable table(rope_frequencies(10000.0, 16));
  const at::Tensor x = at::randn({4, 2, 16});
  const at::Tensor from = at::tensor({3, 90, 4000, 7}, at::kLong);
  const at::Tensor to = at::tensor({0, 100, 12, 7}, at::kLong);
  const at::Tensor there = apply_rope_reference(x, table.angles(from, at::kFloat));
  const at::Tensor wanted = apply_rope_reference(x, table.angles(to, at::kFloat));
  EXPECT_LE(largest_difference(table.rotate(there, to - from), wanted), 2e-3);
}

TEST(Rope, three_part_positions) {
  const at::Tensor frequencies = rope_frequencies(10000.0, 8);
  const RopeTable table(frequencies, {0, 1, 2, 1});
  const RopeTable plain(frequencies);
  const at::Tensor positions = at::tensor({5, 6, 50, 60, 500, 600}, at::kLong).view({3, 2});
  const at::Tensor got = table.angles(positions, at::kFloat).sin;
  const std::vector<int64_t> axes = {0, 1, 2, 1};
  for (int64_t i = 0; i < 4; ++i) {
    const at::Tensor row = positions[axes[static_cast<std::size_t>(i)]];
    EXPECT_TRUE(at::equal(got.select(1, i), plain.angles(row, at::kFloat).sin.select(1, i))) << i;
  }
  // Text gives all three parts the same position.
  const at::Tensor text = at::arange(3, at::kLong);
  EXPECT_TRUE(at::equal(table.angles(text.expand({3, 3}), at::kFloat).cos,
                        plain.angles(text, at::kFloat).cos));
  EXPECT_THROW(plain.angles(positions, at::kFloat), Error);
  EXPECT_THROW(RopeTable(frequencies, {0, 1}), Error);
  EXPECT_THROW(RopeTable(frequencies, {0, 1, 2, 3}), Error);
}

TEST(Rope, refuses_wrong_shapes) {
  const RopeTable table(rope_frequencies(10000.0, 16));
  const RopeAngles angles = table.angles(at::arange(3, at::kLong), at::kFloat);
  EXPECT_THROW(apply_rope(at::randn({2, 2, 16}), angles), Error);
  EXPECT_THROW(apply_rope(at::randn({3, 2, 8}), angles), Error);
  EXPECT_THROW(apply_rope(at::randn({3, 16}), angles), Error);
}

TEST(Rope, gradient_flows) {
  const RopeTable table(rope_frequencies(10000.0, 8));
  at::Tensor x = at::randn({3, 2, 8});
  x.set_requires_grad(true);
  const at::Tensor before = x.detach().clone();
  const RopeAngles angles = table.angles(at::arange(3, at::kLong), at::kFloat);
  apply_rope(x, angles).square().sum().backward();
  // A rotation keeps lengths, so the gradient of the squared length is 2 x.
  EXPECT_LE(largest_difference(x.grad(), 2 * before), 1e-5);
  EXPECT_TRUE(at::equal(x.detach(), before));
}

TEST(Rope, with_a_gradient_equals_the_reference) {
  const CpuLevel before = cpu_level();
  for (const CpuLevel level : {CpuLevel::kPortable, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (level > detected_cpu_level()) continue;
    set_cpu_level(level);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const int64_t half : {1, 5, 32}) {
        const at::Tensor x = at::randn({7, 3, 2 * half}).to(type), angle = at::randn({7, half});
        const RopeAngles angles{angle.cos(), angle.sin()};
        const RopeAngles wide{angles.cos.to(at::kDouble), angles.sin.to(at::kDouble)};
        expect_same_gradients(
            {x}, [&](const std::vector<at::Tensor>& in) { return apply_rope(in[0], angles); },
            [&](const std::vector<at::Tensor>& in) { return apply_rope_reference(in[0], wide); },
            type == at::kFloat ? 1e-6 : 0.01);
      }
  }
  set_cpu_level(before);
}

}  // namespace
}  // namespace coppice::ops
