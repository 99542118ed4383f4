#include "coppice/ops/gate_scores.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "coppice/core/error.h"

namespace coppice::ops {
namespace {

// What a Fast KVzip gate computes, worked out with another program to six digits.
TEST(SinkGate, equals_a_case_worked_out_apart) {
  const auto type = at::kDouble;
  const at::Tensor x = at::tensor({1.0, -2.0}, type);
  const at::Tensor wq = at::tensor({1., 0., 0., 1., .5, -.5, 1., 1.}, type).view({4, 2});
  const at::Tensor wk = at::tensor({1., 0., 1., -1.}, type).view({2, 2});
  const at::Tensor u = at::cat({at::matmul(wq, x), at::matmul(wk, x)}).unsqueeze(0);
  SinkGate gate{.query_bias = at::tensor({0., .5, 0., 0.}, type),
                .query_norm = at::ones({2}, type),
                .key_norm = at::ones({2}, type),
                .sinks = at::tensor({.3, .1, -.2, .4}, type).view({1, 2, 2}),
                .bias = at::tensor({.2, -.1}, type)};
  const double score = sink_gate_score(u, gate).exp().item<double>();
  EXPECT_NEAR(score, .238307, 1e-6);
  SinkGate twice = gate;
  twice.bias = gate.bias * 2;
  EXPECT_NEAR(sink_gate_score(u, twice).exp().item<double>(), .247810, 1e-6);
  // Float32 goes another way to the same number.
  for (at::Tensor* each :
       {&gate.query_bias, &gate.query_norm, &gate.key_norm, &gate.sinks, &gate.bias})
    *each = each->to(at::kFloat);
  EXPECT_NEAR(sink_gate_score(u.to(at::kFloat), gate).exp().item<double>(), .238307, 1e-6);
}

SinkGate random_gate(int64_t heads, int64_t groups, int64_t sinks, int64_t width) {
  return {.query_bias = at::randn({heads * groups * width}),
          .query_norm = at::rand({width}) + 0.5,
          .key_norm = at::rand({width}) + 0.5,
          .sinks = at::randn({heads, sinks, width}),
          .bias = at::randn({heads * groups})};
}

TEST(SinkGate, loops_equal_the_reference_and_tokens_do_not_meet) {
  for (const auto& [heads, groups] : {std::pair<int64_t, int64_t>{1, 1}, {3, 3}, {2, 7}}) {
    const SinkGate gate = random_gate(heads, groups, 5, 6);
    const at::Tensor u = at::randn({37, heads * (groups + 1) * 6});
    const at::Tensor got = sink_gate_score(u, gate);
    EXPECT_LE((got - sink_gate_score_reference(u, gate)).abs().max().item<double>(), 1e-5);
    EXPECT_LE(got.max().item<double>(), 0.0);
    for (const int64_t t : {0, 17, 36})
      EXPECT_TRUE(at::equal(sink_gate_score(u.slice(0, t, t + 1).contiguous(), gate),
                            got.slice(0, t, t + 1)));
  }
  const SinkGate gate = random_gate(1, 1, 1, 2);
  EXPECT_EQ(sink_gate_score(at::zeros({0, 4}), gate).size(0), 0);
}

// Certain tokens and hopeless ones give numbers.
TEST(SinkGate, extremes_stay_finite) {
  SinkGate gate = random_gate(1, 2, 2, 4);
  for (const double bias : {-1e4, -100.0, 100.0, 1e4}) {
    gate.bias.fill_(bias);
    const at::Tensor got = sink_gate_score(at::randn({3, 12}), gate);
    EXPECT_TRUE(got.isfinite().all().item<bool>()) << bias;
    EXPECT_LE(got.max().item<double>(), 0.0);
  }
  EXPECT_TRUE(sink_gate_score(at::zeros({1, 12}), gate).isfinite().all().item<bool>());
}

TEST(SinkGate, gradients_are_finite_differences) {
  SinkGate gate = random_gate(2, 2, 3, 4);
  for (at::Tensor* each :
       {&gate.query_bias, &gate.query_norm, &gate.key_norm, &gate.sinks, &gate.bias})
    *each = each->to(at::kDouble).requires_grad_(true);
  const at::Tensor u = at::randn({3, 24}, at::kDouble);
  sink_gate_score(u, gate).sum().backward();
  const c10::NoGradGuard no_gradient;
  for (at::Tensor* each :
       {&gate.query_bias, &gate.query_norm, &gate.key_norm, &gate.sinks, &gate.bias}) {
    double* const value = each->mutable_data_ptr<double>() + each->numel() / 2;
    constexpr double kStep = 1e-6;
    *value += kStep;
    const double up = sink_gate_score(u, gate).sum().item<double>();
    *value -= 2 * kStep;
    const double down = sink_gate_score(u, gate).sum().item<double>();
    *value += kStep;
    EXPECT_NEAR(each->grad().flatten()[each->numel() / 2].item<double>(), (up - down) / (2 * kStep),
                1e-6);
  }
}

TEST(SinkGate, refuses_shapes_that_disagree) {
  const SinkGate gate = random_gate(2, 2, 3, 4);
  EXPECT_THROW(sink_gate_score(at::zeros({3, 23}), gate), Error);
  EXPECT_THROW(sink_gate_score(at::zeros({24}), gate), Error);
  SinkGate wrong = gate;
  wrong.bias = at::zeros({3});
  EXPECT_THROW(sink_gate_score(at::zeros({3, 24}), wrong), Error);
}

TEST(Gelu, equals_the_library_and_elements_do_not_meet) {
  const at::Tensor x = at::cat({at::randn({1001}) * 3, at::tensor({-40.0F, 0.0F, 40.0F})});
  const at::Tensor wanted = at::gelu(x.to(at::kDouble));
  const at::Tensor got = ops::gelu(x.clone());
  EXPECT_LE((got - wanted).abs().max().item<double>(), 1e-6);
  EXPECT_TRUE(at::equal(ops::gelu(x.slice(0, 500, 503).clone()), got.slice(0, 500, 503)));
  const at::Tensor learned = x.clone().requires_grad_(true);
  ops::gelu(learned * 1.0).sum().backward();
  EXPECT_TRUE(learned.grad().defined());
}

}  // namespace
}  // namespace coppice::ops
