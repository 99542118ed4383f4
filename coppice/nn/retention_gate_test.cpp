#include "coppice/nn/retention_gate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "coppice/core/error.h"

namespace coppice::nn {
namespace {

constexpr int64_t kHidden = 6;
constexpr int64_t kWidth = 5;
constexpr int64_t kHeads = 3;

struct Case {
  GateVariant variant;
  int64_t hidden_layers;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (GateVariant variant : {GateVariant::kShared, GateVariant::kHeadRow, GateVariant::kLocal})
    for (int64_t layers : {1, 2}) cases.push_back({variant, layers});
  return cases;
}

std::shared_ptr<RetentionGate> make(const Case& c, const RetentionGate* first = nullptr) {
  const RetentionGateOptions options{c.variant, kHidden, kWidth, kHeads, c.hidden_layers};
  auto gate = std::make_shared<RetentionGate>(options, first);
  torch::NoGradGuard no_gradient;
  for (auto& parameter : gate->parameters()) parameter.copy_(torch::randn_like(parameter) * 0.7);
  return gate;
}

// The header's equations, one head at a time.
at::Tensor by_definition(RetentionGate& gate, const at::Tensor& x) {
  const auto p = gate.named_parameters();
  const RetentionGateOptions& o = gate.options();
  at::Tensor u = torch::silu(torch::linear(x, p["linear1.weight"], p["linear1.bias"]));
  if (o.hidden_layers == 2)
    u = torch::silu(torch::linear(u, p["linear2.weight"], p["linear2.bias"]));
  const at::Tensor w = p["linear" + std::to_string(o.hidden_layers + 1) + ".weight"];
  std::vector<at::Tensor> heads;
  for (int64_t h = 0; h < kHeads; ++h) {
    const bool shared = o.variant == GateVariant::kShared;
    const at::Tensor u_h = shared ? u.slice(1, h * kWidth, (h + 1) * kWidth) : u;
    heads.push_back(u_h.matmul(w[shared ? 0 : h]) + p["bias"][shared ? 0 : h]);
  }
  return torch::log_sigmoid(torch::stack(heads, 1));
}

TEST(RetentionGate, equals_its_definition) {
  for (const Case& c : all_cases()) {
    const auto gate = make(c);
    const at::Tensor x = torch::randn({4, kHidden});
    const at::Tensor log_beta = gate->forward(x);
    EXPECT_EQ(log_beta.sizes(), (std::vector<int64_t>{4, kHeads}));
    EXPECT_EQ(log_beta.scalar_type(), torch::kFloat);
    EXPECT_LE(log_beta.max().item<float>(), 0.0f);
    EXPECT_LE((log_beta - by_definition(*gate, x)).abs().max().item<double>(), 1e-5);
  }
}

TEST(RetentionGate, layers_share_what_the_variant_says) {
  for (const Case& c : all_cases()) {
    const auto first = make(c);
    const auto second = make(c, first.get());
    const std::string head = "linear" + std::to_string(c.hidden_layers + 1) + ".weight";
    const auto same = [&](const std::string& name) {
      return first->named_parameters()[name].is_same(second->named_parameters()[name]);
    };
    EXPECT_EQ(same(head), c.variant != GateVariant::kLocal);
    EXPECT_EQ(same("bias"), c.variant == GateVariant::kShared);
    EXPECT_FALSE(same("linear1.weight"));
  }
}

TEST(RetentionGate, long_memories_keep_their_precision) {
  const auto gate = make({GateVariant::kLocal, 1});
  torch::NoGradGuard no_gradient;
  for (auto& parameter : gate->named_parameters())
    parameter.value().fill_(parameter.key() == "bias" ? 18.0 : 0.0);
  const at::Tensor log_beta = gate->forward(torch::randn({2, kHidden}));
  // beta itself would round to 1 in float32.
  EXPECT_NEAR(log_beta[0][0].item<double>(), -1.522998e-8, 1e-13);
}

TEST(RetentionGate, works_in_double_with_gradients) {
  for (const Case& c : all_cases()) {
    const auto gate = make(c);
    gate->to(torch::kDouble);
    for (auto& parameter : gate->parameters()) parameter.set_requires_grad(true);
    const at::Tensor x = torch::randn({3, kHidden}, torch::kDouble);
    const at::Tensor log_beta = gate->forward(x);
    EXPECT_EQ(log_beta.scalar_type(), torch::kDouble);
    log_beta.sum().backward();
    at::Tensor weight = gate->named_parameters()["linear1.weight"];
    const double slope = weight.grad()[1][2].item<double>();
    torch::NoGradGuard no_gradient;
    const double step = 1e-6;
    weight[1][2] += step;
    const double up = gate->forward(x).sum().item<double>();
    weight[1][2] -= 2 * step;
    const double down = gate->forward(x).sum().item<double>();
    EXPECT_NEAR(slope, (up - down) / (2 * step), 1e-6);
  }
}

TEST(RetentionGate, packs_bfloat16_numbers_without_loss_and_no_others) {
  torch::NoGradGuard no_gradient;
  for (const Case& c : all_cases()) {
    const auto gate = make(c);
    const at::Tensor x = torch::randn({4, kHidden});
    at::Tensor first = gate->named_parameters()["linear1.weight"];
    for (auto& parameter : gate->parameters())
      if (!parameter.is_same(first)) parameter.copy_(parameter.to(torch::kBFloat16));
    const at::Tensor wanted = gate->forward(x.clone());
    gate->pack();
    EXPECT_LE((gate->forward(x.clone()) - wanted).abs().max().item<double>(), 1e-5);
    EXPECT_TRUE(gate->named_parameters().contains("linear1.weight"));
    EXPECT_FALSE(gate->named_parameters().contains("linear2.weight"));
  }
}

TEST(RetentionGate, packs_whole_groups_of_32_to_8_bits) {
  torch::NoGradGuard no_gradient;
  for (const GateVariant variant :
       {GateVariant::kShared, GateVariant::kHeadRow, GateVariant::kLocal})
    for (const int64_t hidden_layers : {1, 2}) {
      RetentionGate gate({variant, 96, 64, kHeads, hidden_layers});
      for (auto& parameter : gate.parameters())
        parameter.copy_(torch::randn_like(parameter).mul_(0.1).to(torch::kBFloat16));
      const at::Tensor x = torch::randn({4, 96});
      const at::Tensor wanted = gate.forward(x.clone());
      EXPECT_FALSE(gate.is_packed());
      gate.pack();
      EXPECT_TRUE(gate.is_packed());
      const at::Tensor got = gate.forward(x.clone());
      EXPECT_LE((got - wanted).abs().max().item<double>(), 0.02);
      // Many tokens and few go different ways to the same bits.
      const at::Tensor many = torch::randn({20, 96});
      const at::Tensor all = gate.forward(many.clone());
      for (const int64_t tokens : {1, 8, 9})
        EXPECT_TRUE(torch::equal(gate.forward(many.slice(0, 0, tokens).contiguous()),
                                 all.slice(0, 0, tokens)));
    }
}

TEST(RetentionGate, refuses_sizes_out_of_range) {
  EXPECT_THROW(RetentionGate({GateVariant::kLocal, kHidden, kWidth, kHeads, 3}), Error);
  EXPECT_THROW(RetentionGate({GateVariant::kLocal, kHidden, kWidth, kHeads, 0}), Error);
  EXPECT_THROW(RetentionGate({GateVariant::kLocal, kHidden, 0, kHeads, 1}), Error);
  EXPECT_THROW(RetentionGate({GateVariant::kLocal, 0, kWidth, kHeads, 1}), Error);
}

}  // namespace
}  // namespace coppice::nn
