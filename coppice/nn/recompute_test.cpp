#include "coppice/nn/recompute.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace coppice::nn {
namespace {

TEST(RecomputeTest, GradientsAreThoseOfThePlainPass) {
  torch::manual_seed(1);
  const at::Tensor weight = torch::randn({4, 4}, torch::kDouble).requires_grad_(true);
  const at::Tensor start = torch::randn({3, 4}, torch::kDouble);
  int runs = 0;
  const Segment segment = [&](const std::vector<at::Tensor>& inputs) {
    ++runs;
    EXPECT_FALSE(inputs[1].defined());
    const at::Tensor y = torch::tanh(inputs[0].matmul(weight));
    return std::vector<at::Tensor>{y, y.square().sum(1)};
  };
  const auto gradients = [&](bool again, bool of_input) {
    weight.mutable_grad() = at::Tensor();
    at::Tensor x = start.clone().requires_grad_(of_input);
    const std::vector<at::Tensor> inputs = {x, at::Tensor()};
    const auto out = again ? recompute(segment, inputs, weight) : segment(inputs);
    (out[0].sum() * 2.0 + out[1].sum()).backward();
    return std::pair{weight.grad().clone(), x.grad()};
  };
  for (const bool of_input : {true, false}) {
    const auto plain = gradients(false, of_input);
    runs = 0;
    const auto again = gradients(true, of_input);
    EXPECT_EQ(runs, 2) << "once each way";
    EXPECT_TRUE(at::equal(again.first, plain.first)) << "of the parameter inside";
    if (of_input) {
      EXPECT_TRUE(at::equal(again.second, plain.second));
    } else {
      EXPECT_FALSE(again.second.defined());
    }
  }
}

TEST(RecomputeTest, ResultsThatNobodyUsesTakeNoGradient) {
  const at::Tensor weight = torch::ones({2}).requires_grad_(true);
  const Segment segment = [&](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{inputs[0] * weight, inputs[0] * 3.0};
  };
  const auto out = recompute(segment, {torch::ones({2})}, weight);
  out[0].sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), torch::ones({2})));
}

}  // namespace
}  // namespace coppice::nn
