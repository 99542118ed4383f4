#include "coppice/ops/capacity.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/cpu_features.h"
#include "coppice/ops/gradient_testing.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

constexpr CapacityScope kScopes[] = {CapacityScope::kGlobal, CapacityScope::kLocal};

at::Tensor random_log_beta(int64_t tokens, int64_t layers, int64_t heads) {
  return -at::exp(at::rand({tokens, layers, heads}, at::kDouble) * 9.0 - 7.0);
}

// Loops over scalars, the definition itself.
double brute_force(const at::Tensor& log_beta, const std::vector<int64_t>& cu, double budget,
                   CapacityScope scope) {
  const int64_t rows = log_beta.size(1) * log_beta.size(2);
  const at::Tensor flat = log_beta.reshape({-1, rows});
  double sum = 0;
  int64_t elements = 0;
  for (std::size_t b = 0; b + 1 < cu.size(); ++b)
    for (int64_t t = cu[b]; t < cu[b + 1]; ++t) {
      const double room = static_cast<double>(t - cu[b]) + 1 - budget;
      double all = 0;
      for (int64_t r = 0; r < rows; ++r) {
        double held = 0;
        for (int64_t i = cu[b]; i <= t; ++i)
          held += std::exp(static_cast<double>(t - i) * flat[i][r].item<double>());
        all += held;
        if (scope == CapacityScope::kLocal && room > 0) sum += std::max(0.0, held - budget) / room;
      }
      const double rows_held = static_cast<double>(rows);
      if (scope == CapacityScope::kGlobal && room > 0)
        sum += std::max(0.0, all - budget * rows_held) / (rows_held * room);
      elements += scope == CapacityScope::kGlobal ? 1 : rows;
    }
  return sum / static_cast<double>(elements);
}

TEST(Capacity, equals_the_definition) {
  const std::vector<int64_t> cu = {0, 1, 4, 4, 23};
  const at::Tensor log_beta = random_log_beta(23, 3, 7);
  for (const CapacityScope scope : kScopes)
    for (const double budget : {0.5, 1.0, 3.0, 4.7, 30.0}) {
      const double wanted = brute_force(log_beta, cu, budget, scope);
      EXPECT_NEAR(capacity_loss_reference(log_beta, cu, budget, scope).item<double>(), wanted,
                  1e-12);
      EXPECT_NEAR(capacity_loss(log_beta, cu, budget, scope).item<double>(), wanted, 1e-12);
      EXPECT_NEAR(capacity_loss(log_beta.to(at::kFloat), cu, budget, scope).item<double>(), wanted,
                  1e-5);
    }
}

// With beta = 1 everything is kept, and every position past the budget has the largest excess
// there is: exactly 1, at position M as at any other.
TEST(Capacity, keeping_all_costs_one_at_every_position_past_the_budget) {
  const at::Tensor log_beta = at::zeros({64, 2, 3}, at::kDouble);
  for (const CapacityScope scope : kScopes)
    for (int64_t tokens : {8, 9, 10, 12, 64}) {
      const at::Tensor some = log_beta.slice(0, 0, tokens);
      const double loss =
          capacity_loss(some, std::vector<int64_t>{0, tokens}, 8, scope).item<double>();
      EXPECT_NEAR(loss * static_cast<double>(tokens), static_cast<double>(tokens - 8), 1e-12)
          << tokens << " tokens";
    }
}

TEST(Capacity, gradients_equal_finite_differences) {
  const std::vector<int64_t> cu = {0, 3, 14, 15};
  const at::Tensor log_beta = random_log_beta(15, 2, 3);
  for (const CapacityScope scope : kScopes)
    for (const auto& fn : {capacity_loss, capacity_loss_reference})
      for (const double budget : {1.0, 2.5})
        expect_gradients(
            {log_beta}, [&] { return fn(log_beta, cu, budget, scope) * 3.0; }, 1e-8);
}

// Over many blocks of positions, of lanes, and at every level of the processor.
TEST(Capacity, long_documents_equal_the_reference) {
  const std::vector<int64_t> cu = {0, 300, 301, 365, 500};
  const at::Tensor log_beta = random_log_beta(500, 5, 7);
  const CpuLevel before = cpu_level();
  for (const CpuLevel level : {CpuLevel::kPortable, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (level > detected_cpu_level()) continue;
    set_cpu_level(level);
    for (const CapacityScope scope : kScopes)
      for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
        std::vector<double> losses;
        std::vector<at::Tensor> gradients;
        for (const auto& fn : {capacity_loss, capacity_loss_reference}) {
          const at::Tensor leaf = (losses.empty() ? log_beta.to(type) : log_beta)
                                      .detach()
                                      .clone()
                                      .set_requires_grad(true);
          const at::Tensor loss = fn(leaf, cu, 9.5, scope);
          (loss * 2.0).backward();
          losses.push_back(loss.item<double>());
          gradients.push_back(leaf.grad().to(at::kDouble));
        }
        const double tolerance = type == at::kDouble ? 1e-9 : 1e-5;
        EXPECT_NEAR(losses[0], losses[1], tolerance * losses[1]);
        EXPECT_LE((gradients[0] - gradients[1]).abs().max().item<double>(),
                  tolerance * gradients[1].abs().max().item<double>());
      }
  }
  set_cpu_level(before);
}

TEST(Capacity, threads_change_no_bit) {
  const int before = num_threads();
  const at::Tensor log_beta = random_log_beta(400, 3, 9).to(at::kFloat);
  const std::vector<int64_t> cu = {0, 100, 400};
  for (const CapacityScope scope : kScopes) {
    std::vector<at::Tensor> results;
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      const at::Tensor leaf = log_beta.detach().clone().set_requires_grad(true);
      const at::Tensor loss = capacity_loss(leaf, cu, 8, scope);
      loss.backward();
      results.push_back(at::cat({loss.detach().view({1}), leaf.grad().view({-1})}));
    }
    set_num_threads(before);
    EXPECT_TRUE(at::equal(results[0], results[1]));
    EXPECT_TRUE(at::equal(results[0], results[2]));
  }
}

TEST(Capacity, gates_that_keep_nothing_or_too_little_cost_nothing) {
  const std::vector<int64_t> cu = {0, 200};
  for (const CapacityScope scope : kScopes)
    for (const double fade : {-1e30, -std::numeric_limits<double>::infinity(), -0.5}) {
      const at::Tensor leaf = at::full({200, 2, 2}, fade, at::kFloat).set_requires_grad(true);
      const at::Tensor loss = capacity_loss(leaf, cu, 8, scope);
      loss.backward();
      EXPECT_EQ(loss.item<float>(), 0.0F);
      EXPECT_EQ(leaf.grad().abs().max().item<float>(), 0.0F);
    }
}

TEST(Capacity, refuses_what_does_not_fit) {
  const at::Tensor log_beta = at::zeros({8, 2, 2});
  const std::vector<int64_t> cu = {0, 8}, wrong = {0, 9};
  const auto scope = CapacityScope::kGlobal;
  EXPECT_THROW(capacity_loss(log_beta, wrong, 4, scope), Error);
  EXPECT_THROW(capacity_loss(log_beta, cu, 0, scope), Error);
  EXPECT_THROW(capacity_loss(log_beta, cu, NAN, scope), Error);
  EXPECT_THROW(capacity_loss(log_beta.view({8, 4}), cu, 4, scope), Error);
  EXPECT_THROW(capacity_loss(log_beta.to(at::kBFloat16), cu, 4, scope), Error);
  EXPECT_EQ(capacity_loss(log_beta.slice(0, 0, 0), std::vector<int64_t>{0}, 4, scope).item<float>(),
            0.0F);
}

}  // namespace
}  // namespace coppice::ops
