#include "coppice/ops/distillation.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/gradient_testing.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

struct Inputs {
  at::Tensor student, teacher, head, targets;
};

Inputs random_inputs(int64_t tokens, int64_t width, int64_t vocab, at::ScalarType type) {
  Inputs in;
  in.student = at::randn({tokens, width}, at::kDouble).to(type);
  in.teacher = (in.student + 0.3 * at::randn({tokens, width}, at::kDouble)).to(type);
  in.head = at::randn({vocab, width}, at::kDouble).div(std::sqrt(width) / 2).to(type);
  in.targets = at::randint(vocab, {tokens}, at::kLong);
  in.targets[tokens / 3] = -100;
  in.targets[tokens - 1] = -100;
  return in;
}

TEST(Distillation, chunks_equal_all_at_once) {
  const Inputs in = random_inputs(37, 24, 301, at::kDouble);
  for (const double kl_weight : {1.0, 0.0, 0.4})
    for (const int64_t chunk : {1, 5, 36, 256}) {
      const DistillOptions options{chunk, kl_weight, 0.7};
      std::vector<at::Tensor> gradients;
      std::vector<DistillResult> results;
      for (const auto& fn : {distill_loss, distill_loss_reference}) {
        const at::Tensor student = in.student.detach().clone().set_requires_grad(true);
        results.push_back(fn(student, in.teacher, in.head, in.targets, options));
        (results.back().loss * 2.0).backward();
        gradients.push_back(student.grad());
      }
      EXPECT_EQ(results[0].tokens, 35);
      EXPECT_NEAR(results[0].kl, results[1].kl, 1e-12);
      EXPECT_NEAR(results[0].ntp, results[1].ntp, 1e-12);
      EXPECT_NEAR(results[0].loss.item<double>(), results[1].loss.item<double>(), 1e-12);
      EXPECT_LE((gradients[0] - gradients[1]).abs().max().item<double>(), 1e-14);
      EXPECT_EQ(gradients[0][12].abs().max().item<double>(), 0.0);  // no target, no gradient
    }
}

struct Graded {
  DistillResult result;
  at::Tensor gradient;
};

template <typename Fn>
Graded run(const Inputs& in, const DistillOptions& options, const Fn& fn) {
  const at::Tensor student = in.student.detach().clone().set_requires_grad(true);
  Graded graded{fn(student, in.teacher, in.head, in.targets, options), {}};
  graded.result.loss.backward();
  graded.gradient = student.grad().to(at::kDouble);
  return graded;
}

// Widths and vocabularies that fill no tile, more than one slice of the vocabulary, odd widths.
TEST(Distillation, narrow_types_equal_the_reference) {
  for (const auto& [tokens, width, vocab] :
       {std::tuple<int64_t, int64_t, int64_t>{70, 40, 301}, {131, 64, 4500}, {9, 33, 2049}}) {
    const DistillOptions options{100, 1.0, 0.7};
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      Inputs in = random_inputs(tokens, width, vocab, type);
      const Graded got = run(in, options, distill_loss);
      for (at::Tensor* x : {&in.student, &in.teacher, &in.head}) *x = x->to(at::kDouble);
      const Graded wanted = run(in, options, distill_loss_reference);
      const bool wide = type == at::kFloat;
      const bool rounds_logits = !wide && width % 2 == 1;  // no kernel of ours
      EXPECT_EQ(got.result.loss.scalar_type(), at::kFloat);
      EXPECT_NEAR(got.result.kl, wanted.result.kl, rounds_logits ? 1e-2 : 2e-6);
      EXPECT_NEAR(got.result.ntp, wanted.result.ntp, rounds_logits ? 2e-2 : 2e-6);
      const double error =
          ((got.gradient - wanted.gradient).abs().max() / wanted.gradient.abs().max())
              .item<double>();
      EXPECT_LE(error, wide            ? 1e-5
                       : rounds_logits ? 0.05
                                       : 0.01)
          << at::toString(type) << ", width " << width;
      const c10::NoGradGuard no_gradient;
      for (at::Tensor* x : {&in.student, &in.teacher, &in.head}) *x = x->to(type);
      const DistillResult plain =
          distill_loss(in.student, in.teacher, in.head, in.targets, options);
      EXPECT_EQ(plain.kl, got.result.kl);
      EXPECT_EQ(plain.ntp, got.result.ntp);
      EXPECT_FALSE(plain.loss.requires_grad());
    }
  }
}

TEST(Distillation, a_token_without_target_changes_nothing) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    Inputs in = random_inputs(20, 16, 90, type);
    const Graded before = run(in, {}, distill_loss);
    EXPECT_EQ(before.gradient[6].abs().max().item<double>(), 0.0);
    in.student[6] = 1e4;
    in.teacher[6] = -1e4;
    const Graded after = run(in, {}, distill_loss);
    EXPECT_EQ(before.result.kl, after.result.kl);
    EXPECT_TRUE(at::equal(before.gradient, after.gradient));
  }
}

TEST(Distillation, equal_hidden_states_have_no_kl) {
  Inputs in = random_inputs(20, 16, 90, at::kFloat);
  in.teacher = in.student;
  const Graded same = run(in, {256, 1.0, 0.0}, distill_loss);
  EXPECT_NEAR(same.result.kl, 0.0, 1e-6);
  EXPECT_LE(same.gradient.abs().max().item<double>(), 1e-6);
}

// So that training can see it and stop.
TEST(Distillation, nan_reaches_the_loss) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Inputs in = random_inputs(20, 16, 90, type);
    in.student[3][5] = NAN;
    const Graded broken = run(in, {}, distill_loss);
    EXPECT_TRUE(std::isnan(broken.result.kl) && std::isnan(broken.result.ntp));
    EXPECT_TRUE(std::isnan(broken.result.loss.item<float>()));
  }
}

TEST(Distillation, no_target_at_all_gives_zero) {
  Inputs in = random_inputs(5, 8, 30, at::kFloat);
  in.targets.fill_(-100);
  const Graded none = run(in, {}, distill_loss);
  EXPECT_EQ(none.result.tokens, 0);
  EXPECT_EQ(none.result.loss.item<float>(), 0.0F);
  EXPECT_EQ(none.gradient.abs().max().item<double>(), 0.0);
}

TEST(Distillation, threads_change_no_bit) {
  const int before = num_threads();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Inputs in = random_inputs(70, 48, 6000, type);
    std::vector<Graded> runs;
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      runs.push_back(run(in, {}, distill_loss));
    }
    set_num_threads(before);
    for (const Graded& other : runs) {
      EXPECT_EQ(runs[0].result.kl, other.result.kl);
      EXPECT_EQ(runs[0].result.ntp, other.result.ntp);
      EXPECT_TRUE(at::equal(runs[0].gradient, other.gradient));
    }
  }
}

TEST(Distillation, refuses_what_does_not_fit) {
  const Inputs in = random_inputs(5, 8, 30, at::kFloat);
  EXPECT_THROW(distill_loss(in.student, in.teacher.slice(0, 1), in.head, in.targets), Error);
  EXPECT_THROW(distill_loss(in.student, {}, in.head, in.targets), Error);
  EXPECT_THROW(distill_loss(in.student, in.teacher, in.head.slice(1, 1), in.targets), Error);
  EXPECT_THROW(distill_loss(in.student, in.teacher.to(at::kDouble), in.head, in.targets), Error);
  EXPECT_THROW(distill_loss(in.student, in.teacher, in.head, in.targets.to(at::kInt)), Error);
  EXPECT_THROW(distill_loss(in.student, in.teacher, in.head, in.targets + 25), Error);
  EXPECT_THROW(distill_loss(in.student, in.teacher, in.head, in.targets, {0}), Error);
  EXPECT_EQ(distill_loss(in.student, {}, in.head, in.targets, {256, 0.0}).kl, 0.0);
}

TEST(Distillation, gradients_equal_finite_differences) {
  const Inputs in = random_inputs(7, 5, 11, at::kDouble);
  const DistillOptions options{3, 1.0, 1.0};
  expect_gradients({in.student}, [&] {
    return distill_loss(in.student, in.teacher, in.head, in.targets, options).loss * 1.5;
  });
}

}  // namespace
}  // namespace coppice::ops
