// Gates far beyond what training should reach, through everything their numbers go through: the
// logarithm of the sigmoid, the attention of training and the capacity term. And documents from
// which no gradient may come.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "coppice/ops/activation.h"
#include "coppice/ops/capacity.h"
#include "coppice/ops/gradient_testing.h"
#include "coppice/ops/retention_attention.h"

namespace coppice::ops {
namespace {

constexpr double kSizes[] = {20, 30, 100, 1e4};

bool is_finite(const at::Tensor& x) { return x.isfinite().all().item<bool>(); }

at::Tensor no_bias() { return at::zeros({1}, at::kDouble); }

// What a gate's output reaches in the loss, for z [N, Hkv].
struct Chain {
  at::Tensor q, k, v, weight;
  std::vector<int64_t> cu_seqlens;
  double budget = 2.0;

  static Chain random(std::vector<int64_t> cu_seqlens, int64_t heads, int64_t kv_heads,
                      int64_t dims) {
    const int64_t n = cu_seqlens.back();
    return {at::randn({n, heads, dims}, at::kDouble), at::randn({n, kv_heads, dims}, at::kDouble),
            at::randn({n, kv_heads, dims}, at::kDouble), at::randn({n, heads, dims}, at::kDouble),
            std::move(cu_seqlens)};
  }

  at::Tensor loss(const at::Tensor& z, bool reference = false) const {
    const at::Tensor log_beta = log_sigmoid(z, no_bias().to(z.scalar_type()));
    const auto attend = reference ? retention_attention_reference : retention_attention;
    const auto count = reference ? capacity_loss_reference : capacity_loss;
    const at::Tensor out = attend(q, k, v, log_beta, cu_seqlens, 0.3);
    const at::Tensor held =
        count(log_beta.unsqueeze(1), cu_seqlens, budget, CapacityScope::kGlobal);
    return (out.to(z.scalar_type()) * weight.to(z.scalar_type())).sum() + held * 10.0;
  }

  Chain to(at::ScalarType type) const {
    return {q.to(type), k.to(type), v.to(type), weight.to(type), cu_seqlens, budget};
  }
};

// Two tokens, one head: d out / d z of the older one in closed form, P (1 - P) sigmoid(-z), and of
// the capacity term with a budget below 1, sigmoid(z) sigmoid(-z) / (2 x 1.5). Both are above 0,
// and so is what is computed wherever the type can hold it.
TEST(GateExtremes, G04_GradientsHaveTheRightSignAndSize) {
  const std::vector<int64_t> cu = {0, 2};
  for (const at::ScalarType type : {at::kDouble, at::kFloat})
    for (const double size : kSizes)
      for (const double z : {size, -size}) {
        const auto leaf = [&] {
          return at::full({2, 1}, z, at::TensorOptions(type)).set_requires_grad(true);
        };
        const double share = 1 / (1 + std::exp(z));  // sigmoid(-z)
        const double log_beta = std::min(z, 0.0) - std::log1p(std::exp(-std::abs(z)));
        const double p = 1 / (1 + std::exp(-log_beta));  // of the older key, equal logits
        const double tolerance = type == at::kDouble ? 1e-12 : 1e-5;
        const double smallest = type == at::kDouble ? 1e-300 : 1e-37;

        const at::Tensor at_attention = leaf();
        const at::Tensor ones = at::ones({2, 1, 4}, at::TensorOptions(type));
        const at::Tensor v =
            at::stack({at::ones({1, 4}), at::zeros({1, 4})}).to(type);  // older, newer
        const at::Tensor attention_bias = at::zeros({1}, at::TensorOptions(type));
        retention_attention(ones, ones, v, log_sigmoid(at_attention, attention_bias), cu, 0.5)
            .select(2, 0)
            .sum()
            .backward();
        const double got = at_attention.grad()[0][0].item<double>();
        const double wanted = p * (1 - p) * share;
        EXPECT_TRUE(is_finite(at_attention.grad())) << z;
        EXPECT_NEAR(got, wanted, tolerance * wanted + smallest) << z;
        EXPECT_TRUE(got > 0.0 || (got == 0.0 && wanted <= smallest)) << z;
        EXPECT_EQ(at_attention.grad()[1][0].item<double>(), 0.0) << "the newest key has no age";

        const at::Tensor at_capacity = leaf();
        const at::Tensor held = capacity_loss(log_sigmoid(at_capacity, attention_bias).unsqueeze(1),
                                              cu, 0.5, CapacityScope::kGlobal);
        held.backward();
        const double cost = at_capacity.grad()[0][0].item<double>();
        const double beta = std::exp(log_beta);
        // Terms below e^-20 (float64: e^-40) are left out.
        const bool left_out = log_beta < (type == at::kDouble ? -40 : -20);
        const double wanted_cost = left_out ? 0.0 : beta * share / 3.0;
        EXPECT_TRUE(is_finite(held) && is_finite(at_capacity.grad())) << z;
        const double rounding = type == at::kDouble ? 1e-16 : 1e-7;  // of beta itself
        EXPECT_NEAR(cost, wanted_cost, tolerance * wanted_cost + rounding) << z;
        EXPECT_GE(cost, 0.0) << z;
      }
}

// One gate in three is far out, between ordinary ones that it must not spoil. Where differences are
// too small for float64 (beyond +-30) the gradient has to be as small.
TEST(GateExtremes, G04_GradientsEqualFiniteDifferences) {
  for (const double size : kSizes)
    for (const double sign : {1.0, -1.0}) {
      const Chain chain = Chain::random({0, 2, 9}, 4, 2, 3);
      at::Tensor z = at::randn({9, 2}, at::kDouble) * 2.0;
      z.view({-1}).slice(0, 0, 18, 3).fill_(sign * size);
      for (const bool reference : {false, true})
        expect_gradients({z}, [&] { return chain.loss(z, reference); });
    }
}

// Over several tiles, in every type of training: finite everywhere, and as the reference in float64
// has it.
TEST(GateExtremes, G04_KernelsStayFiniteBesideTheReference) {
  const Chain wide = Chain::random({0, 1, 150, 210}, 6, 2, 16);
  const double values[] = {20, -20, 30, -30, 100, -100, 1e4, -1e4, 0, 5};
  const at::Tensor z = at::empty({210, 2}, at::kDouble);
  const at::Tensor choice = at::randint(0, 10, {420}, at::kLong);
  for (int64_t i = 0; i < 420; ++i)
    z.view({-1})[i] = values[static_cast<std::size_t>(choice[i].item<int64_t>())];

  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Chain narrow = wide.to(type);
    const Chain exact = narrow.to(at::kDouble);
    std::vector<at::Tensor> gradients[2];
    for (const bool reference : {false, true}) {
      const Chain& chain = reference ? exact : narrow;
      const at::ScalarType fade = reference || type == at::kDouble ? at::kDouble : at::kFloat;
      std::vector<at::Tensor> leaves;
      for (const at::Tensor& x : {chain.q, chain.k, chain.v, z.to(fade)})
        leaves.push_back(x.detach().clone().set_requires_grad(true));
      const Chain of_leaves{leaves[0], leaves[1], leaves[2], chain.weight, chain.cu_seqlens};
      const at::Tensor loss = of_leaves.loss(leaves[3], reference);
      EXPECT_TRUE(is_finite(loss)) << at::toString(type);
      loss.backward();
      for (const at::Tensor& leaf : leaves) gradients[reference].push_back(leaf.grad());
    }
    const double tolerance = type == at::kDouble ? 1e-9 : type == at::kFloat ? 1e-4 : 0.02;
    for (std::size_t i = 0; i < 4; ++i) {
      const at::Tensor got = gradients[0][i].to(at::kDouble), wanted = gradients[1][i];
      EXPECT_TRUE(is_finite(got)) << at::toString(type) << ", leaf " << i;
      EXPECT_LE((got - wanted).abs().max().item<double>(),
                tolerance * wanted.abs().max().item<double>())
          << at::toString(type) << ", leaf " << i;
    }
  }
}

// A query that sees no key at all cannot exist in training: rows are packed without padding, a
// document's offsets hold whole tokens of its own, windows are refused (RetentionBackend), and the
// diagonal has no bias, so that every query sees at least itself. What can exist is a query whose
// other keys have faded to nothing, a document of one token, and an empty one (two equal offsets).
TEST(GateExtremes, G05_QueriesThatTheLossIgnoresGiveExactlyNoGradient) {
  constexpr double kGone = -std::numeric_limits<double>::infinity();
  const std::vector<int64_t> cu = {0, 1, 1, 71, 140};  // the last document carries no loss
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const double faded : {-50.0, -1e4, -1e30, kGone}) {
      const Chain chain = Chain::random(cu, 6, 2, 16).to(type);
      const at::ScalarType fade_type = type == at::kDouble ? at::kDouble : at::kFloat;
      at::Tensor fade = at::rand({140, 2}, fade_type) * -0.6 - 0.05;
      fade.slice(0, 20, 60).fill_(faded);  // every key before queries 61 and on, and more
      fade.slice(0, 100, 140).fill_(faded);
      at::Tensor upstream = chain.weight.clone();
      upstream.slice(0, 71, 140).zero_();
      upstream[40].zero_();  // one query inside a document that counts
      std::vector<at::Tensor> leaves;
      for (const at::Tensor& x : {chain.q, chain.k, chain.v, fade})
        leaves.push_back(x.detach().clone().set_requires_grad(true));
      const at::Tensor out =
          retention_attention(leaves[0], leaves[1], leaves[2], leaves[3], cu, 0.25);
      EXPECT_TRUE(is_finite(out));
      out.backward(upstream);
      for (const at::Tensor& leaf : leaves) {
        EXPECT_TRUE(is_finite(leaf.grad())) << at::toString(type) << " " << faded;
        EXPECT_EQ(leaf.grad().slice(0, 71, 140).abs().max().item<double>(), 0.0);
        EXPECT_GT(leaf.grad().slice(0, 1, 71).abs().max().item<double>(), 0.0);
      }
      EXPECT_EQ(leaves[0].grad()[40].abs().max().item<double>(), 0.0);
      EXPECT_EQ(leaves[3].grad()[0].abs().max().item<double>(), 0.0) << "a document of one token";

      // A key that has faded away gives nothing, and takes nothing.
      if (faded > -1e3) continue;
      EXPECT_EQ(leaves[3].grad().slice(0, 20, 60).abs().max().item<double>(), 0.0);
      EXPECT_TRUE(at::equal(out[0], chain.v[0].repeat_interleave(3, 0)));
    }
}

}  // namespace
}  // namespace coppice::ops
