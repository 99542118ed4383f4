#include "coppice/ops/activation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "coppice/core/error.h"
#include "coppice/ops/cpu_features.h"
#include "coppice/ops/gradient_testing.h"

namespace coppice::ops {
namespace {

TEST(Activation, fast_path_equals_reference) {
  for (int64_t size : {1, 15, 16, 1536, 40000}) {
    const at::Tensor gate = at::randn({2, size}) * 8;
    const at::Tensor up = at::randn({2, size});
    const at::Tensor wanted = silu_mul_reference(gate.to(at::kDouble), up.to(at::kDouble));
    const at::Tensor got = silu_mul(gate.clone(), up);
    EXPECT_LE((got - wanted).abs().max().item<double>(), 2e-5) << size;
  }
}

TEST(Activation, extremes_stay_finite_and_nan_stays_nan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor gate = at::tensor({-1e30f, -200.0f, -88.0f, 0.0f, 88.0f, 1e30f, nan});
  const at::Tensor up = at::ones({7});
  const at::Tensor y = silu_mul(gate.clone(), up);
  for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(y[i].item<double>(), 0.0, 1e-5) << i;
  EXPECT_EQ(y[3].item<float>(), 0.0f);
  EXPECT_FLOAT_EQ(y[4].item<float>(), 88.0f);
  EXPECT_FLOAT_EQ(y[5].item<float>(), 1e30f);
  EXPECT_TRUE(std::isnan(y[6].item<float>()));
}

TEST(Activation, keeps_its_input_where_a_gradient_is_recorded) {
  at::Tensor gate = at::randn({3, 4});
  gate.set_requires_grad(true);
  const at::Tensor before = gate.detach().clone();
  silu_mul(gate, at::ones({3, 4})).sum().backward();
  EXPECT_TRUE(at::equal(gate.detach(), before));
  EXPECT_TRUE(gate.grad().defined());
}

TEST(Activation, silu_alone) {
  const at::Tensor x = at::randn({3, 70}) * 6;
  EXPECT_LE((ops::silu(x.clone()) - at::silu(x)).abs().max().item<double>(), 1e-5);
  const at::Tensor strided = x.t();
  EXPECT_LE((ops::silu(strided) - at::silu(x).t()).abs().max().item<double>(), 1e-5);
}

TEST(Activation, log_sigmoid_is_exact_where_sigmoid_rounds_to_one) {
  const at::Tensor z = at::tensor({-100.0f, -1.0f, 0.0f, 2.0f, 12.0f, 30.0f}).view({2, 3});
  const at::Tensor bias = at::tensor({0.5f, 0.0f, -0.5f});
  const at::Tensor wanted = at::log_sigmoid(z.to(at::kDouble) + bias.to(at::kDouble));
  const at::Tensor got = ops::log_sigmoid(z, bias);
  EXPECT_LE(((got - wanted) / wanted).abs().max().item<double>(), 1e-6);
  EXPECT_TRUE(at::equal(ops::log_sigmoid(z, at::zeros({1})), ops::log_sigmoid(z, at::zeros({3}))));
  EXPECT_EQ(ops::log_sigmoid(z.to(at::kDouble), bias.to(at::kDouble)).scalar_type(), at::kDouble);
  EXPECT_THROW(ops::log_sigmoid(z, at::zeros({2})), Error);
}

TEST(Activation, refuses_other_shapes) {
  EXPECT_THROW(silu_mul(at::randn({3, 4}), at::randn({4, 3})), Error);
}

TEST(Activation, with_a_gradient_equals_the_reference) {
  const CpuLevel before = cpu_level();
  for (const CpuLevel level : {CpuLevel::kPortable, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (level > detected_cpu_level()) continue;
    set_cpu_level(level);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const int64_t size : {1, 17, 1536}) {
        const at::Tensor gate = (at::randn({5, size}) * 4).to(type);
        const at::Tensor up = at::randn({5, size}).to(type);
        expect_same_gradients(
            {gate, up}, [](const std::vector<at::Tensor>& in) { return silu_mul(in[0], in[1]); },
            [](const std::vector<at::Tensor>& in) { return silu_mul_reference(in[0], in[1]); },
            type == at::kFloat ? 2e-6 : 0.01);
      }
  }
  set_cpu_level(before);
}

}  // namespace
}  // namespace coppice::ops
