#include "coppice/nn/fastkvzip_gate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "coppice/core/error.h"

namespace coppice::nn {
namespace {

// The case of ops/gate_scores_test.cpp, through the module's parameters.
TEST(FastKvzipGate, equals_a_case_worked_out_apart) {
  FastKvzipGate gate(
      {.hidden_size = 2, .width = 2, .sinks = 2, .num_query_heads = 2, .num_kv_heads = 1});
  const torch::NoGradGuard no_gradient;
  const auto set = [&](const char* name, std::vector<float> values) {
    at::Tensor target = gate.named_parameters()[name];
    target.copy_(torch::tensor(values).view(target.sizes()));
  };
  set("projection.weight", {1, 0, 0, 1, .5, -.5, 1, 1, 1, 0, 1, -1});
  set("query_bias", {0, .5, 0, 0});
  set("query_norm", {1, 1});
  set("key_norm", {1, 1});
  set("sinks", {.3F, .1F, -.2F, .4F});
  set("bias", {.2F, -.1F});
  const at::Tensor x = torch::tensor({1.0F, -2.0F}).view({1, 2});
  EXPECT_NEAR(gate.forward(x).exp().item<double>(), .238307, 1e-6);
}

// Without learned sinks and bias, an own key at right angles wins against S equal ones.
TEST(FastKvzipGate, starts_where_its_paper_says) {
  FastKvzipGate gate({.hidden_size = 8, .num_query_heads = 6, .num_kv_heads = 2});
  const torch::NoGradGuard no_gradient;
  for (auto& item : gate.named_parameters())
    item.value().fill_(item.key().find("norm") != std::string::npos ? 1.0 : 0.0);
  const at::Tensor score = gate.forward(torch::randn({3, 8})).exp();
  EXPECT_EQ(score.sizes(), (std::vector<int64_t>{3, 2}));
  EXPECT_LE((score - 1.0 / 17).abs().max().item<double>(), 1e-6);
}

TEST(FastKvzipGate, packed_tokens_are_the_same_bits_whatever_is_beside_them) {
  FastKvzipGate gate({.hidden_size = 64, .num_query_heads = 6, .num_kv_heads = 2});
  const torch::NoGradGuard no_gradient;
  for (at::Tensor& parameter : gate.parameters())
    parameter.copy_((torch::randn_like(parameter) * 0.3).to(torch::kBFloat16));
  const at::Tensor x = torch::randn({20, 64});
  const at::Tensor wanted = gate.forward(x);
  gate.pack();
  const at::Tensor all = gate.forward(x);
  EXPECT_LE((all - wanted).abs().max().item<double>(), 0.1);
  for (const int64_t tokens : {1, 8, 9})
    EXPECT_TRUE(torch::equal(gate.forward(x.slice(0, 0, tokens)), all.slice(0, 0, tokens)));
}

TEST(FastKvzipGate, refuses_sizes_out_of_range) {
  EXPECT_THROW(FastKvzipGate({.hidden_size = 4, .num_query_heads = 5, .num_kv_heads = 2}), Error);
  EXPECT_THROW(FastKvzipGate({.hidden_size = 0, .num_query_heads = 4, .num_kv_heads = 2}), Error);
  EXPECT_THROW(
      FastKvzipGate({.hidden_size = 4, .sinks = 0, .num_query_heads = 4, .num_kv_heads = 2}),
      Error);
}

}  // namespace
}  // namespace coppice::nn
