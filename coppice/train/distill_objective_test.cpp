#include "coppice/train/distill_objective.h"

#include <gtest/gtest.h>

#include <cmath>

#include "coppice/train/optimizer.h"
#include "coppice/train/train_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

// The gradients of one micro-batch.
at::Tensor gradients_of(Model& model, const Row& row, const DistillTraining& distill) {
  DistillObjective objective(model, distill);
  AdamW optimizer(gate_parameters(model), {});
  Measures measures;
  const StepInfo info{0, 1, static_cast<int64_t>(row.tokens.size()), row.num_targets()};
  objective.accumulate(model, make_micro_batch(row), info, measures);
  for (const char* what : {"kl", "ntp", "capacity", "mean_beta"})
    EXPECT_TRUE(std::isfinite(measures.mean(what))) << what;
  return optimizer.gradients().clone();
}

// Tokens of one document; without targets where it carries no loss.
Row document_row(int64_t tokens, bool targets, int64_t salt = 0) {
  Row row;
  for (int64_t i = 0; i < tokens; ++i) row.tokens.push_back(3 + (i * 7 + salt) % 200);
  for (int64_t i = 0; i < tokens; ++i)
    row.targets.push_back(targets && i + 1 < tokens ? row.tokens[static_cast<std::size_t>(i) + 1]
                                                    : kNoTarget);
  row.cu_seqlens = {0, tokens};
  row.labels = {"made"};
  return row;
}

// Gates that are certain, of forgetting or of keeping, and hidden units that are far out.
TEST(DistillObjectiveTest, G04_ExtremeGatesGiveFiniteLossesAndGradients) {
  const Row row = document_row(40, true);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool recompute : {false, true})
      for (const double size : {20.0, 30.0, 100.0, 1e4})
        for (const double sign : {1.0, -1.0}) {
          DistillTraining distill = {.capacity = 6.0};
          distill.recompute = recompute;
          const std::shared_ptr<Model> certain =
              tiny_model(dtype, "head-row", sign * size);  // the bias of the head
          const at::Tensor gradient = gradients_of(*certain, row, distill);
          EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << sign * size;
          const double largest = gradient.abs().max().item<double>();
          EXPECT_TRUE(size > 30 || largest > 0.0) << sign * size;
          EXPECT_TRUE(size < 1e4 || largest == 0.0) << sign * size;

          const std::shared_ptr<Model> hidden = tiny_model(dtype);
          for (const NamedParameter& parameter : gate_parameters(*hidden))
            if (parameter.name == "layers.1.linear1.bias") {
              const torch::NoGradGuard no_gradient;
              at::Tensor(parameter.value).fill_(sign * size);
            }
          EXPECT_TRUE(gradients_of(*hidden, row, distill).isfinite().all().item<bool>())
              << sign * size;
        }
}

// Padding does not exist; what can be in a row are documents whose tokens carry no loss, and ones
// of a single token, which predict nothing.
TEST(DistillObjectiveTest, G05_DocumentsWithoutTargetsAddNothing) {
  for (const double bias : {2.0, -1e4})  // with the second, every query sees itself alone
    for (const bool recompute : {false, true}) {
      DistillTraining distill;
      distill.lambda = 0.0;
      distill.recompute = recompute;
      const Row with_loss = document_row(20, true);
      Row all = document_row(1, true);
      append_row(all, document_row(13, false, 5));
      append_row(all, with_loss);
      append_row(all, document_row(9, false, 11));
      ASSERT_EQ(all.num_targets(), with_loss.num_targets());
      const at::Tensor alone =
          gradients_of(*tiny_model(at::kFloat, "head-row", bias), with_loss, distill);
      const at::Tensor among =
          gradients_of(*tiny_model(at::kFloat, "head-row", bias), all, distill);
      EXPECT_TRUE(among.isfinite().all().item<bool>());
      EXPECT_LE((among - alone).abs().max().item<double>(),
                1e-6 * alone.abs().max().item<double>());
      EXPECT_EQ(alone.abs().max().item<double>() > 0, bias > 0);

      const at::Tensor nothing =
          gradients_of(*tiny_model(at::kFloat, "head-row", bias), document_row(13, false), distill);
      EXPECT_EQ(nothing.abs().max().item<double>(), 0.0);
    }
}

}  // namespace
}  // namespace coppice
