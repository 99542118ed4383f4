#include "coppice/ops/budget_pressure.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/gradient_testing.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

at::Tensor random_log_beta(int64_t tokens, int64_t rows, at::ScalarType type) {
  return -at::exp(at::rand({tokens, rows}, at::kDouble) * 7.0 - 7.0).to(type);
}

TEST(BudgetPressure, holds_the_budget_at_the_middle_of_each_block) {
  const std::vector<int64_t> documents = {0, 20, 20, 720};
  const std::vector<double> budgets = {30.0, 8.0, 40.0};
  for (const auto type : {at::kDouble, at::kFloat}) {
    const at::Tensor log_beta = random_log_beta(720, 5, type);
    const at::Tensor pressure = budget_pressure(log_beta, documents, budgets, 8);
    EXPECT_EQ(pressure.slice(0, 0, 20).abs().max().item<double>(), 0.0);  // shorter than its budget
    for (int64_t t = 0; t < 700; t += kPressureBlock) {
      const int64_t middle = std::min<int64_t>(t + 64, 699);
      const double here = pressure[20 + t].item<double>();
      EXPECT_EQ(pressure[20 + std::min<int64_t>(t + 127, 699)].item<double>(), here);
      const double held = held_under_pressure(log_beta, 20, middle, here, 8).sum().item<double>();
      EXPECT_NEAR(held, 40.0 * 5, type == at::kFloat ? 1e-3 : 1e-9) << t;
    }
  }
}

TEST(BudgetPressure, falls_as_the_budget_grows) {
  const at::Tensor log_beta = random_log_beta(600, 3, at::kFloat);
  double before = 1e30;
  for (const double budget : {4.0, 16.0, 64.0, 256.0, 500.0}) {
    const double here =
        budget_pressure(log_beta, std::vector<int64_t>{0, 600}, std::vector{budget}, 4)[599]
            .item<double>();
    EXPECT_LT(here, before);
    EXPECT_GT(here, 0.0);
    before = here;
  }
}

TEST(BudgetPressure, scaling_every_lifetime_scales_the_pressure) {
  const at::Tensor log_beta = random_log_beta(400, 4, at::kDouble);
  const std::vector<int64_t> documents = {0, 400};
  const at::Tensor one = budget_pressure(log_beta, documents, std::vector{32.0}, 8);
  const at::Tensor two = budget_pressure(log_beta * 3.0, documents, std::vector{32.0}, 8);
  EXPECT_LE((one - two * 3.0).abs().max().item<double>(), 1e-9);
}

TEST(BudgetPressure, gradients_equal_finite_differences) {
  const at::Tensor log_fade = at::rand({150, 2}, at::kDouble) * 7.0 - 7.0;
  const at::Tensor weight = at::randn({150}, at::kDouble);
  for (const int64_t sharpness : {2, 8})
    expect_gradients({log_fade}, [&] {
      const at::Tensor pressure = budget_pressure(
          -log_fade.exp(), std::vector<int64_t>{0, 100, 150}, std::vector{12.0, 9.0}, sharpness);
      return (pressure.log1p() * weight).sum();
    });
}

// More entries that never fade than the budget has room for: as much pressure as there is, and no
// gradient that is not finite.
TEST(BudgetPressure, what_cannot_be_held_is_finite) {
  at::Tensor log_beta = at::zeros({300, 2});
  log_beta.slice(0, 100, 300).fill_(-0.5);
  log_beta.set_requires_grad(true);
  const at::Tensor pressure =
      budget_pressure(log_beta, std::vector<int64_t>{0, 300}, std::vector{50.0}, 8);
  EXPECT_TRUE(pressure.isfinite().all().item<bool>());
  pressure.sum().backward();
  EXPECT_TRUE(log_beta.grad().isfinite().all().item<bool>());
}

TEST(BudgetPressure, does_not_depend_on_the_number_of_threads) {
  const at::Tensor log_beta = random_log_beta(1000, 3, at::kFloat);
  const int before = num_threads();
  std::vector<at::Tensor> results;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    const at::Tensor leaf = log_beta.clone().set_requires_grad(true);
    const at::Tensor pressure =
        budget_pressure(leaf, std::vector<int64_t>{0, 900, 1000}, std::vector{64.0, 20.0}, 8);
    pressure.sum().backward();
    results.push_back(at::cat({pressure.detach(), leaf.grad().flatten()}));
  }
  set_num_threads(before);
  EXPECT_TRUE(at::equal(results[0], results[1]));
}

TEST(BudgetPressure, refuses_bad_arguments) {
  const at::Tensor log_beta = random_log_beta(10, 2, at::kFloat);
  const std::vector<int64_t> documents = {0, 10};
  EXPECT_THROW(budget_pressure(log_beta, documents, std::vector{4.0}, 3), Error);
  EXPECT_THROW(budget_pressure(log_beta, documents, std::vector{0.0}, 4), Error);
  EXPECT_THROW(budget_pressure(log_beta, documents, std::vector{4.0, 4.0}, 4), Error);
  EXPECT_THROW(budget_pressure(log_beta.to(at::kInt), documents, std::vector{4.0}, 4), Error);
}

}  // namespace
}  // namespace coppice::ops
