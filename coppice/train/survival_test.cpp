#include <gtest/gtest.h>

#include <cmath>

#include "coppice/train/optimizer.h"
#include "coppice/train/survival_objective.h"
#include "coppice/train/train_testing.h"
#include "coppice/train/trainer.h"
#include "coppice/train/training_state.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

Row random_row(int64_t tokens, uint64_t seed) {
  Rng rng(seed);
  Row row;
  for (int64_t i = 0; i < tokens; ++i)
    row.tokens.push_back(3 + static_cast<int64_t>(rng.below(40)));
  row.targets.assign(static_cast<std::size_t>(tokens), kNoTarget);
  row.cu_seqlens = {0, tokens / 4, tokens};
  row.labels = {"short", "long"};
  return row;
}

SurvivalTraining small_training(Model& model, const std::vector<Row>& rows) {
  SurvivalTraining training;
  training.log_thresholds =
      calibrate_thresholds(model, rows, {8, 16}, ops::NeedUtility::kLeaveOneOut);
  training.updates = 3;
  training.tokens_per_update = 64;
  training.pairs = 256;
  return training;
}

TEST(SurvivalObjectiveTest, ThresholdsFallWithTheBudget) {
  const std::shared_ptr<Model> model = tiny_model();
  const std::vector<double> thresholds =
      calibrate_thresholds(*model, {random_row(160, 1)}, {4, 8, 16}, ops::NeedUtility::kAttention);
  EXPECT_GT(thresholds[0], thresholds[1]);
  EXPECT_GT(thresholds[1], thresholds[2]);
  EXPECT_LE(thresholds[0], 0.0) << "ln of a weight of attention";
  EXPECT_NE(
      message_of([&] { calibrate_thresholds(*model, {}, {4}, ops::NeedUtility::kAttention); }), "");
}

TEST(SurvivalObjectiveTest, TheLossFallsAndOnlyGatesAndSigmaTakeGradients) {
  const std::shared_ptr<Model> model = tiny_model();
  for (at::Tensor& parameter : model->parameters()) parameter.requires_grad_(false);
  const std::vector<Row> rows = {random_row(200, 1)};
  SurvivalObjective objective(*model, small_training(*model, rows));
  std::vector<NamedParameter> parameters = gate_parameters(*model);
  for (const NamedParameter& own : objective.parameters()) parameters.push_back(own);
  AdamW optimizer(parameters, {});
  double first = 0, last = 0;
  objective.begin_batch();
  for (int64_t step = 0; step < 60; ++step) {
    optimizer.zero_gradients();
    Measures measures;
    objective.accumulate(*model, make_micro_batch(rows[0]), {step, 60, 200, 0}, measures);
    ASSERT_TRUE(optimizer.gradients().isfinite().all().item<bool>());
    optimizer.step(1e-2);
    (step == 0 ? first : last) = measures.mean("loss");
  }
  EXPECT_LT(last, 0.8 * first);
  EXPECT_NE(objective.parameters()[0].value.item<float>(), 1.0f);
}

// States in the middle of the steps on one batch of rows, and between two of them.
TEST(SurvivalObjectiveTest, G08_AResumedRunEqualsAnUnbrokenOne) {
  const std::vector<Row> rows = {random_row(160, 1)};
  expect_resumed_equals_unbroken(
      150, {1, 3, 5}, [] { return tiny_model(); },
      [&](Model& model) { return SurvivalObjective(model, small_training(model, rows)); });
}

}  // namespace
}  // namespace coppice
