#include "coppice/train/budget_objective.h"

#include <gtest/gtest.h>

#include <cmath>

#include "coppice/train/optimizer.h"
#include "coppice/train/train_testing.h"
#include "coppice/train/trainer.h"
#include "coppice/train/training_state.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

Row random_row(const std::vector<int64_t>& offsets, uint64_t seed) {
  Rng rng(seed);
  Row row;
  for (int64_t i = 0; i < offsets.back(); ++i) {
    row.tokens.push_back(3 + static_cast<int64_t>(rng.below(40)));
    row.targets.push_back(3 + static_cast<int64_t>(rng.below(40)));
  }
  row.cu_seqlens = offsets;
  row.labels.assign(offsets.size() - 1, "random");
  return row;
}

struct Outcome {
  Measures measures;
  at::Tensor gradients;
};

Outcome run_once(Model& model, const BudgetTraining& options, const Row& row, int64_t step = 0) {
  for (at::Tensor& parameter : model.parameters()) parameter.requires_grad_(false);
  for (const NamedParameter& gate : gate_parameters(model)) {
    gate.value.requires_grad_(true);
    gate.value.mutable_grad() = at::Tensor();
  }
  BudgetObjective objective(model, options);
  Outcome outcome;
  const MicroBatch micro = make_micro_batch(row);
  objective.accumulate(model, micro, {step, 10, micro.batch.num_tokens(), micro.num_targets},
                       outcome.measures);
  std::vector<at::Tensor> parts;
  for (const NamedParameter& gate : gate_parameters(model))
    if (gate.value.grad().defined()) parts.push_back(gate.value.grad().flatten());
  if (!parts.empty()) outcome.gradients = torch::cat(parts).clone();
  return outcome;
}

TEST(BudgetObjectiveTest, ABudgetAboveTheLengthChangesNothing) {
  const std::shared_ptr<Model> model = tiny_model();
  const Outcome outcome = run_once(*model, {.least = 200, .most = 200}, random_row({0, 30, 96}, 1));
  EXPECT_LE(outcome.measures.mean("kl"), 1e-6);
}

TEST(BudgetObjectiveTest, TighterBudgetsAreFurtherFromTheTeacher) {
  const std::shared_ptr<Model> model = tiny_model();
  double before = 1e-9;
  for (const double budget : {48.0, 24.0, 12.0, 6.0}) {
    const Outcome outcome = run_once(*model, {.least = budget, .most = budget, .sinks = 1},
                                     random_row({0, 30, 128}, 1));
    EXPECT_GT(outcome.measures.mean("kl"), before) << budget;
    EXPECT_EQ(outcome.measures.mean("budget"), budget);
    EXPECT_TRUE(outcome.gradients.isfinite().all().item<bool>());
    before = outcome.measures.mean("kl");
  }
}

// A bias common to all gates moves every lifetime by about the same factor, which the cut takes
// back; a bias of one head does not.
TEST(BudgetObjectiveTest, WhatScalesAllLifetimesIsTakenBackByTheCut) {
  const std::shared_ptr<Model> model = tiny_model(at::kFloat, "head-row", 7.0);
  const BudgetTraining options{.least = 16, .most = 16};
  const Row row = random_row({0, 128}, 3);
  const double before = run_once(*model, options, row).measures.mean("kl");
  const auto shift = [&](bool all) {
    const torch::NoGradGuard no_gradient;
    for (const NamedParameter& gate : gate_parameters(*model))
      if (gate.name.ends_with("bias") && gate.value.numel() == 2)
        (all ? gate.value : gate.value.slice(0, 0, 1)).add_(all ? 1.0 : 3.0);
  };
  shift(true);
  const double together = run_once(*model, options, row).measures.mean("kl");
  shift(false);
  const double apart = run_once(*model, options, row).measures.mean("kl");
  EXPECT_NEAR(together, before, 0.005 * before);
  EXPECT_GT(std::abs(apart - before), 0.01 * before);
}

TEST(BudgetObjectiveTest, BudgetsDependOnTheDocumentAndTheStep) {
  const std::shared_ptr<Model> model = tiny_model();
  const BudgetTraining options{.least = 4, .most = 32, .sinks = 0};
  const auto budget = [&](const Row& row, int64_t step) {
    return run_once(*model, options, row, step).measures.mean("budget");
  };
  const Row row = random_row({0, 100}, 1), other = random_row({0, 100}, 2);
  EXPECT_EQ(budget(row, 0), budget(row, 0));
  EXPECT_NE(budget(row, 0), budget(row, 1));
  EXPECT_NE(budget(row, 0), budget(other, 0));
  for (int64_t step = 0; step < 20; ++step) {
    EXPECT_GE(budget(row, step), 4.0);
    EXPECT_LE(budget(row, step), 32.0);
  }
}

TEST(BudgetObjectiveTest, TheLossFallsAndTheBaseTakesNoGradient) {
  for (const char* variant : {"shared", "head-row", "local"}) {
    const std::shared_ptr<Model> model = tiny_model(at::kFloat, variant, 4.0);
    for (auto& item : model->named_parameters())
      item.value().requires_grad_(item.key().find("retention_gate") != std::string::npos);
    const BudgetTraining options{.least = 8, .most = 8, .ntp_weight = 0.0};
    const Row row = random_row({0, 128}, 1);
    BudgetObjective objective(*model, options);
    AdamW optimizer(gate_parameters(*model), {});
    double first = 0, last = 0;
    for (int64_t step = 0; step < 60; ++step) {
      optimizer.zero_gradients();
      Measures measures;
      const MicroBatch micro = make_micro_batch(row);
      objective.accumulate(*model, micro, {step, 60, 128, micro.num_targets}, measures);
      ASSERT_TRUE(optimizer.gradients().isfinite().all().item<bool>());
      optimizer.step(2e-2);
      (step == 0 ? first : last) = measures.mean("kl");
    }
    EXPECT_LT(last, 0.8 * first) << variant;
    for (const auto& item : model->named_parameters()) {
      const bool gate = item.key().find("retention_gate") != std::string::npos;
      EXPECT_TRUE(gate || !item.value().grad().defined()) << item.key();
    }
  }
}

TEST(BudgetObjectiveTest, G06_ARowWithoutTargetsGivesNoGradient) {
  const std::shared_ptr<Model> model = tiny_model();
  Row row = random_row({0, 64}, 1);
  row.targets.assign(64, kNoTarget);
  const Outcome outcome = run_once(*model, {.least = 8, .most = 8}, row);
  const bool some = outcome.gradients.defined() && outcome.gradients.abs().max().item<float>() > 0;
  EXPECT_FALSE(some);
}

TEST(BudgetObjectiveTest, RefusesWhatIsOutOfRange) {
  const std::shared_ptr<Model> model = tiny_model();
  EXPECT_NE(message_of([&] { BudgetObjective(*model, {.least = 64, .most = 32}); }), "");
  EXPECT_NE(message_of([&] { BudgetObjective(*model, {.least = 4, .sinks = 4}); }), "");
  EXPECT_NE(message_of([&] { BudgetObjective(*model, {.sharpness = 3}); }), "");
}

}  // namespace
}  // namespace coppice
