// The parts of the training loss against dense PyTorch: tests/golden/training_cases.json, written
// by tools/make_training_golden.py, which also says what the inputs are.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/ops/capacity.h"
#include "coppice/ops/distillation.h"
#include "coppice/ops/retention_attention.h"

namespace coppice::ops {
namespace {

const std::vector<int64_t> kCu = {0, 1, 5, 11};
constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat};

Json golden() {
  std::ifstream file(COPPICE_SOURCE_DIR "/tests/golden/training_cases.json");
  std::stringstream text;
  text << file.rdbuf();
  return parse_json(text.str(), "training_cases.json");
}

at::Tensor values(at::IntArrayRef sizes, int64_t salt, at::ScalarType type) {
  const at::Tensor i = at::arange(c10::multiply_integers(sizes), at::kLong);
  return ((7 * i + 5 * salt + (i * i).remainder(11)).remainder(23) - 11)
      .to(type)
      .div(8)
      .reshape(sizes);
}

at::Tensor log_beta_values(at::IntArrayRef sizes, int64_t salt, at::ScalarType type) {
  const at::Tensor i = at::arange(c10::multiply_integers(sizes), at::kLong);
  return -(5 * i + salt).remainder(13).to(type).div(16).reshape(sizes);
}

void expect_equal(const at::Tensor& got, const Json& wanted, const char* what) {
  const auto list = wanted.get<std::vector<double>>();
  ASSERT_EQ(got.numel(), static_cast<int64_t>(list.size())) << what;
  const at::Tensor to = at::tensor(list, at::kDouble);
  const double tolerance = got.scalar_type() == at::kDouble ? 1e-12 : 2e-6;
  const double error = (got.to(at::kDouble).view({-1}) - to).abs().max().item<double>();
  EXPECT_LE(error, tolerance * (1.0 + to.abs().max().item<double>())) << what;
}

TEST(TrainingGolden, retention_attention) {
  const Json wanted = golden().at("retention");
  for (const at::ScalarType type : kTypes) {
    at::Tensor q = values({11, 6, 3}, 0, type), k = values({11, 2, 3}, 1, type);
    at::Tensor v = values({11, 2, 3}, 2, type), log_beta = log_beta_values({11, 2}, 3, type);
    for (at::Tensor* x : {&q, &k, &v, &log_beta}) x->set_requires_grad(true);
    const at::Tensor out = retention_attention(q, k, v, log_beta, kCu, 0.75);
    out.backward(values({11, 6, 3}, 4, type));
    expect_equal(out.detach(), wanted.at("out"), "out");
    expect_equal(q.grad(), wanted.at("q"), "gradient of q");
    expect_equal(k.grad(), wanted.at("k"), "gradient of k");
    expect_equal(v.grad(), wanted.at("v"), "gradient of v");
    expect_equal(log_beta.grad(), wanted.at("log_beta"), "gradient of log beta");
  }
}

TEST(TrainingGolden, capacity) {
  const Json all = golden().at("capacity");
  ASSERT_EQ(all.size(), 6u);
  for (const Json& wanted : all)
    for (const at::ScalarType type : kTypes) {
      const at::Tensor log_beta = log_beta_values({11, 2, 2}, 5, type).set_requires_grad(true);
      const auto scope =
          wanted.at("scope") == "global" ? CapacityScope::kGlobal : CapacityScope::kLocal;
      const at::Tensor loss =
          capacity_loss(log_beta, kCu, wanted.at("budget").get<double>(), scope);
      loss.backward();
      EXPECT_NEAR(loss.item<double>(), wanted.at("loss").get<double>(), 1e-7);
      expect_equal(log_beta.grad(), wanted.at("log_beta"), "gradient of log beta");
    }
}

TEST(TrainingGolden, distillation) {
  const Json wanted = golden().at("distillation");
  for (const at::ScalarType type : kTypes) {
    const at::Tensor student = values({11, 4}, 6, type).set_requires_grad(true);
    at::Tensor targets = at::arange(11, at::kLong).mul(5).remainder(13);
    targets[3] = targets[9] = -100;
    const DistillResult result = distill_loss(student, values({11, 4}, 7, type),
                                              values({13, 4}, 8, type), targets, {4, 1.0, 0.5});
    result.loss.backward();
    EXPECT_NEAR(result.kl, wanted.at("kl").get<double>(), 2e-6);
    EXPECT_NEAR(result.ntp, wanted.at("ntp").get<double>(), 2e-6);
    expect_equal(student.grad(), wanted.at("student"), "gradient of the hidden states");
  }
}

}  // namespace
}  // namespace coppice::ops
