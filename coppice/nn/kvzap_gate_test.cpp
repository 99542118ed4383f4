#include "coppice/nn/kvzap_gate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "coppice/core/error.h"

namespace coppice::nn {
namespace {

std::shared_ptr<KvzapGate> random_gate(int64_t hidden, int64_t width, int64_t heads) {
  auto gate = std::make_shared<KvzapGate>(
      KvzapGateOptions{.hidden_size = hidden, .width = width, .num_kv_heads = heads});
  const torch::NoGradGuard no_gradient;
  for (at::Tensor& parameter : gate->parameters())
    parameter.copy_((torch::randn_like(parameter) * 0.3).to(torch::kBFloat16));
  return gate;
}

TEST(KvzapGate, equals_its_definition) {
  const torch::NoGradGuard no_gradient;
  const at::Tensor x = torch::randn({7, 6});
  const auto linear = random_gate(6, 0, 3), mlp = random_gate(6, 5, 3);
  auto p = linear->named_parameters();
  EXPECT_LE((linear->forward(x) - torch::linear(x, p["linear1.weight"], p["linear1.bias"]))
                .abs()
                .max()
                .item<double>(),
            1e-6);
  p = mlp->named_parameters();
  const at::Tensor u = torch::gelu(torch::linear(x, p["linear1.weight"], p["linear1.bias"]));
  EXPECT_LE((mlp->forward(x) - torch::linear(u, p["linear2.weight"], p["linear2.bias"]))
                .abs()
                .max()
                .item<double>(),
            1e-6);
  EXPECT_EQ(mlp->forward(x.to(torch::kBFloat16)).scalar_type(), torch::kFloat);
}

TEST(KvzapGate, packed_tokens_are_the_same_bits_whatever_is_beside_them) {
  const torch::NoGradGuard no_gradient;
  for (const int64_t width : {0, 24, 64}) {
    const auto gate = random_gate(96, width, 3);
    const at::Tensor x = torch::randn({20, 96});
    const at::Tensor wanted = gate->forward(x);
    gate->pack();
    const at::Tensor all = gate->forward(x);
    EXPECT_LE((all - wanted).abs().max().item<double>(), 0.03 * wanted.abs().max().item<double>())
        << width;  // packed to 8 bits
    for (const int64_t tokens : {1, 8, 9})
      EXPECT_TRUE(torch::equal(gate->forward(x.slice(0, 0, tokens)), all.slice(0, 0, tokens)));
  }
}

TEST(KvzapGate, refuses_sizes_out_of_range) {
  EXPECT_THROW(KvzapGate({.hidden_size = 0, .width = 2, .num_kv_heads = 1}), Error);
  EXPECT_THROW(KvzapGate({.hidden_size = 2, .width = -1, .num_kv_heads = 1}), Error);
  EXPECT_THROW(KvzapGate({.hidden_size = 2, .width = 2, .num_kv_heads = 0}), Error);
}

}  // namespace
}  // namespace coppice::nn
