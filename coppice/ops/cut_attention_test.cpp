#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/gradient_testing.h"
#include "coppice/ops/parallel.h"
#include "coppice/ops/retention_attention.h"
#include "coppice/ops/retention_testing.h"

namespace coppice::ops {
namespace {

using namespace testing;  // NOLINT: helpers of these tests

// The formula by autograd, S x S at once.
at::Tensor cut_in_full(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor& log_beta, const at::Tensor& pressure,
                       std::span<const int64_t> cu, double scale, int64_t sharpness) {
  std::vector<at::Tensor> parts;
  const int64_t group = q.size(1) / k.size(1);
  for (std::size_t b = 0; b + 1 < cu.size(); ++b) {
    const auto heads_first = [&](const at::Tensor& x) {
      return x.slice(0, cu[b], cu[b + 1]).transpose(0, 1);
    };
    const int64_t size = cu[b + 1] - cu[b];
    const at::Tensor place = at::arange(size, q.options());
    const at::Tensor age = place.unsqueeze(1) - place.unsqueeze(0);
    const at::Tensor y =
        at::pow(age.clamp_min(0) * pressure.slice(0, cu[b], cu[b + 1]).unsqueeze(1) *
                    -heads_first(log_beta).unsqueeze(1),
                sharpness);
    const at::Tensor keys = heads_first(k).repeat_interleave(group, 0);
    const at::Tensor bias =
        (-at::log1p(y)).masked_fill(y >= 4096, -std::numeric_limits<double>::infinity());
    const at::Tensor logits =
        at::matmul(heads_first(q), keys.transpose(1, 2)) * scale + bias.repeat_interleave(group, 0);
    const at::Tensor weights =
        at::softmax(logits.masked_fill(age < 0, -std::numeric_limits<double>::infinity()), -1);
    parts.push_back(
        at::matmul(weights, heads_first(v).repeat_interleave(group, 0)).transpose(0, 1));
  }
  return at::cat(parts, 0);
}

// Leaves: q, k, v, log beta, pressure, which is e^-3 to e of `harder`.
std::vector<at::Tensor> cut_leaves(const Case& c, at::ScalarType type, double harder = 1.0) {
  const Inputs in = random_inputs(c, type);
  const at::Tensor pressure =
      (at::exp(at::rand({c.cu_seqlens.back()}, at::kDouble) * 4.0 - 3.0) * harder)
          .to(in.log_beta.dtype());
  pressure.slice(0, 0, 3).zero_();     // queries under no pressure
  in.log_beta.slice(0, 0, 1).zero_();  // a key that never fades
  return {in.q, in.k, in.v, in.log_beta, pressure};
}

TEST(CutAttention, gradients_equal_finite_differences) {
  for (const Case& c : kSmall) {
    std::vector<at::Tensor> x = cut_leaves(c, at::kDouble);
    const at::Tensor weight = at::randn_like(x[0]);
    // Not at 0, where the difference would step to the other side.
    x[3].slice(0, 0, 1).fill_(-0.2);
    x[4].clamp_min_(0.05);
    for (const int64_t sharpness : {2, 8})
      expect_gradients(x, [&] {
        return (cut_attention(x[0], x[1], x[2], x[3], x[4], c.cu_seqlens, 0.7, sharpness) * weight)
            .sum();
      });
  }
}

TEST(CutAttention, equals_the_formula) {
  int64_t sharpness = 2;
  for (const Case& c : kRagged) {
    const auto fast = [&](const std::vector<at::Tensor>& x) {
      return cut_attention(x[0], x[1], x[2], x[3], x[4], c.cu_seqlens, 0.2, sharpness);
    };
    const auto formula = [&](const std::vector<at::Tensor>& x) {
      return cut_in_full(x[0], x[1], x[2], x[3], x[4], c.cu_seqlens, 0.2, sharpness);
    };
    expect_same_gradients(cut_leaves(c, at::kDouble), fast, formula, 1e-10);
    expect_same_gradients(cut_leaves(c, at::kFloat), fast, formula, 1e-4);
    expect_same_gradients(cut_leaves(c, at::kBFloat16), fast, formula, 0.02);
    sharpness *= 2;
  }
}

// Most keys are gone for most queries, so tiles of keys are gathered.
TEST(CutAttention, equals_the_formula_where_little_is_left) {
  for (const Case& c : {kRagged[2], kRagged[3]})
    for (const auto& [type, tolerance] :
         {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 0.02}})
      expect_same_gradients(
          cut_leaves(c, type, 50.0),
          [&](const std::vector<at::Tensor>& x) {
            return cut_attention(x[0], x[1], x[2], x[3], x[4], c.cu_seqlens, 0.2, 8);
          },
          [&](const std::vector<at::Tensor>& x) {
            return cut_in_full(x[0], x[1], x[2], x[3], x[4], c.cu_seqlens, 0.2, 8);
          },
          tolerance);
}

TEST(CutAttention, without_pressure_is_plain_attention) {
  const Case c = kRagged[0];
  for (const auto type : {at::kDouble, at::kFloat}) {
    const Inputs in = random_inputs(c, type);
    const at::Tensor none = at::zeros({c.cu_seqlens.back()}, in.log_beta.options());
    const at::Tensor cut = cut_attention(in.q, in.k, in.v, in.log_beta, none, c.cu_seqlens, 0.3, 8);
    const at::Tensor plain =
        retention_attention(in.q, in.k, in.v, at::zeros_like(in.log_beta), c.cu_seqlens, 0.3);
    EXPECT_LE(distance(cut, plain), 1e-6);
  }
}

// Far past the cut a key is as good as evicted: attention over the others alone.
TEST(CutAttention, a_hard_cut_is_attention_over_what_is_kept) {
  const Case c = {{0, 200}, 2, 1, 16};
  const Inputs in = random_inputs(c, at::kFloat);
  const at::Tensor log_beta = -at::ones_like(in.log_beta);
  log_beta.slice(0, 0, 4).zero_();
  // Every key past the first four lives 10 tokens: 9.x is kept, 10.x is gone, by sharpness 32.
  const at::Tensor pressure = at::full({200}, 1.0 / 20.0);
  const at::Tensor got = cut_attention(in.q, in.k, in.v, log_beta, pressure, c.cu_seqlens, 0.3, 32);
  const at::Tensor place = at::arange(200);
  const at::Tensor age = place.unsqueeze(1) - place.unsqueeze(0);
  const at::Tensor kept = (age >= 0).logical_and((age <= 20).logical_or(place.unsqueeze(0) < 4));
  at::Tensor logits = at::matmul(in.q.transpose(0, 1), in.k.permute({1, 2, 0})) * 0.3;
  logits = logits - at::where(age == 20, std::log(2.0), 0.0);  // on the cut: half
  const auto keep = [&](const at::Tensor& mask) {
    return at::softmax(
        logits.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity()), -1);
  };
  const at::Tensor wanted = at::matmul(keep(kept), in.v.transpose(0, 1)).transpose(0, 1);
  // 17 to 19 and 21 to 24 are not far: 32 ln(19/20) = -1.6.
  EXPECT_LE((got - wanted).abs().mean().item<double>(), 0.05);
  EXPECT_LE((got.slice(0, 0, 16) - wanted.slice(0, 0, 16)).abs().max().item<double>(), 1e-3);
}

TEST(CutAttention, does_not_depend_on_the_number_of_threads) {
  const Case c = kRagged[0];
  const int before = num_threads();
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> x = cut_leaves(c, type);
    std::vector<std::vector<at::Tensor>> results;
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      std::vector<at::Tensor> leaves;
      for (const at::Tensor& each : x) leaves.push_back(each.clone().set_requires_grad(true));
      const at::Tensor out = cut_attention(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4],
                                           c.cu_seqlens, 0.3, 8);
      out.sum().backward();
      results.push_back({out.detach()});
      for (const at::Tensor& leaf : leaves) results.back().push_back(leaf.grad());
    }
    for (std::size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << i;
  }
  set_num_threads(before);
}

TEST(CutAttention, refuses_bad_arguments) {
  const std::vector<at::Tensor> x = cut_leaves(kSmall[1], at::kFloat);
  const auto call = [&](const at::Tensor& pressure, int64_t sharpness) {
    return cut_attention(x[0], x[1], x[2], x[3], pressure, kSmall[1].cu_seqlens, 0.3, sharpness);
  };
  EXPECT_THROW(call(x[4], 1), Error);
  EXPECT_THROW(call(x[4], 6), Error);
  EXPECT_THROW(call(x[4].slice(0, 0, 2), 8), Error);
}

}  // namespace
}  // namespace coppice::ops
