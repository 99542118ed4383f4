#include "coppice/ops/rms_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "coppice/core/error.h"
#include "coppice/ops/cpu_features.h"
#include "coppice/ops/gradient_testing.h"

namespace coppice::ops {
namespace {

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(RmsNorm, known_values) {
  const at::Tensor x = at::tensor({3.0f, -4.0f}).view({1, 2});
  const at::Tensor y = rms_norm(x, at::tensor({1.0f, 2.0f}), 0.0);
  const double root = std::sqrt(12.5);
  EXPECT_NEAR(y[0][0].item<double>(), 3 / root, 1e-6);
  EXPECT_NEAR(y[0][1].item<double>(), -8 / root, 1e-6);
}

TEST(RmsNorm, fast_path_equals_reference) {
  for (int64_t size : {1, 7, 16, 64, 576, 1000})
    for (int64_t rows : {1, 5, 300}) {
      const at::Tensor x = at::randn({rows, size}) * 3;
      const at::Tensor weight = at::randn({size});
      EXPECT_LE(largest_difference(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5)),
                2e-5)
          << rows << " x " << size;
    }
}

TEST(RmsNorm, a_row_does_not_depend_on_the_others) {
  const at::Tensor x = at::randn({70, 576});
  const at::Tensor weight = at::randn({576});
  const at::Tensor all = rms_norm(x, weight, 1e-5);
  EXPECT_TRUE(
      at::equal(rms_norm(x.slice(0, 33, 34).contiguous(), weight, 1e-5), all.slice(0, 33, 34)));
}

TEST(RmsNorm, adds_before_it_norms) {
  const at::Tensor weight = at::randn({48});
  for (bool strided : {false, true}) {
    at::Tensor x = at::randn({6, 48});
    const at::Tensor delta = strided ? at::randn({48, 6}).t() : at::randn({6, 48});
    const at::Tensor sum = x + delta;
    const at::Tensor y = add_rms_norm_(x, delta, weight, 1e-6);
    EXPECT_LE(largest_difference(x, sum), 1e-6);
    EXPECT_LE(largest_difference(y, rms_norm_reference(sum, weight, 1e-6)), 1e-5);
  }
}

TEST(RmsNorm, strided_empty_and_double_input) {
  const at::Tensor weight = at::randn({8});
  const at::Tensor strided = at::randn({8, 5}).t();
  EXPECT_LE(largest_difference(rms_norm(strided, weight, 1e-6),
                               rms_norm(strided.contiguous(), weight, 1e-6)),
            1e-6);
  EXPECT_EQ(rms_norm(at::empty({0, 8}), weight, 1e-6).size(0), 0);
  const at::Tensor wide = at::randn({2, 8}, at::kDouble);
  EXPECT_EQ(rms_norm(wide, weight.to(at::kDouble), 1e-6).scalar_type(), at::kDouble);
}

TEST(RmsNorm, refuses_wrong_shapes) {
  EXPECT_THROW(rms_norm(at::randn({2, 8}), at::randn({7}), 1e-6), Error);
  EXPECT_THROW(rms_norm(at::randn({2, 8}), at::randn({8, 1}), 1e-6), Error);
}

TEST(RmsNorm, gradient_flows) {
  at::Tensor x = at::randn({3, 8}, at::kDouble);
  const at::Tensor weight = at::randn({8}, at::kDouble);
  x.set_requires_grad(true);
  rms_norm(x, weight, 1e-6).sum().backward();
  const double step = 1e-6;
  const at::Tensor base = x.detach();
  at::Tensor up = base.clone(), down = base.clone();
  up[1][2] += step;
  down[1][2] -= step;
  const double slope =
      ((rms_norm(up, weight, 1e-6).sum() - rms_norm(down, weight, 1e-6).sum()) / (2 * step))
          .item<double>();
  EXPECT_NEAR(x.grad()[1][2].item<double>(), slope, 1e-6);
}

TEST(RmsNorm, with_a_gradient_equals_the_reference) {
  const CpuLevel before = cpu_level();
  for (const CpuLevel level : {CpuLevel::kPortable, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (level > detected_cpu_level()) continue;
    set_cpu_level(level);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const int64_t size : {3, 7, 64, 576}) {
        const at::Tensor x = (at::randn({9, size}) * 3).to(type);
        const at::Tensor weight = at::randn({size}).to(type);
        expect_same_gradients(
            {x}, [&](const std::vector<at::Tensor>& in) { return rms_norm(in[0], weight, 1e-2); },
            [&](const std::vector<at::Tensor>& in) {
              return rms_norm_reference(in[0], weight.to(at::kDouble), 1e-2);
            },
            type == at::kFloat ? 1e-5 : 0.01);
        const c10::NoGradGuard no_gradient;
        EXPECT_LE(
            largest_difference(rms_norm(x, weight, 1e-2), rms_norm_reference(x, weight, 1e-2)),
            type == at::kFloat ? 2e-5 : 0.1);
      }
  }
  set_cpu_level(before);
}

TEST(RmsNorm, a_weight_that_learns_gets_its_gradient) {
  const at::Tensor weight = at::randn({8}).set_requires_grad(true);
  rms_norm(at::randn({3, 8}).set_requires_grad(true), weight, 1e-5).sum().backward();
  EXPECT_TRUE(weight.grad().defined());
}

}  // namespace
}  // namespace coppice::ops
