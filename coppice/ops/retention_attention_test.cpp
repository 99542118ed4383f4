#include "coppice/ops/retention_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/cpu_features.h"
#include "coppice/ops/gradient_testing.h"
#include "coppice/ops/parallel.h"
#include "coppice/ops/retention_testing.h"

namespace coppice::ops {
namespace {

using namespace testing;  // NOLINT: helpers of these tests

TEST(RetentionAttention, reference_equals_the_sum_over_keys) {
  const Case c = kSmall[0];
  const Inputs in = random_inputs(c, at::kDouble);
  const at::Tensor out =
      retention_attention_reference(in.q, in.k, in.v, in.log_beta, c.cu_seqlens, 0.3);
  for (std::size_t b = 0; b + 1 < c.cu_seqlens.size(); ++b)
    for (int64_t t = c.cu_seqlens[b]; t < c.cu_seqlens[b + 1]; ++t)
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t g = h / (c.heads / c.kv_heads);
        double total = 0;
        at::Tensor sum = at::zeros({c.dims}, at::kDouble);
        for (int64_t i = c.cu_seqlens[b]; i <= t; ++i) {
          const double logit = 0.3 * in.q[t][h].dot(in.k[i][g]).item<double>() +
                               static_cast<double>(t - i) * in.log_beta[i][g].item<double>();
          total += std::exp(logit);
          sum += std::exp(logit) * in.v[i][g];
        }
        EXPECT_LE((out[t][h] - sum / total).abs().max().item<double>(), 1e-12);
      }
}

TEST(RetentionAttention, gradients_equal_finite_differences) {
  for (const Case& c : kSmall) {
    const Inputs in = random_inputs(c, at::kDouble);
    for (const auto& fn : {retention_attention, retention_attention_reference})
      expect_gradients({in.q, in.k, in.v, in.log_beta}, [&] {
        return (fn(in.q, in.k, in.v, in.log_beta, c.cu_seqlens, 0.7) * in.weight).sum();
      });
  }
}

TEST(RetentionAttention, equals_the_reference) {
  for (const Case& c : kRagged) {
    const Inputs in = random_inputs(c, at::kDouble);
    const Results wanted = run(in, c, retention_attention_reference);
    expect_near(run(in, c, retention_attention), wanted, 1e-11);
    Inputs narrow = in;
    for (at::Tensor* x : {&narrow.q, &narrow.k, &narrow.v, &narrow.log_beta, &narrow.weight})
      *x = x->to(at::kFloat);
    expect_near(run(narrow, c, retention_attention), wanted, 1e-5);
    // The weights and their gradient are rounded to 8 bits before they are multiplied.
    for (at::Tensor* x : {&narrow.q, &narrow.k, &narrow.v, &narrow.weight})
      *x = x->to(at::kBFloat16);
    Inputs exact = narrow;
    for (at::Tensor* x : {&exact.q, &exact.k, &exact.v, &exact.log_beta, &exact.weight})
      *x = x->to(at::kDouble);
    expect_near(run(narrow, c, retention_attention), run(exact, c, retention_attention_reference),
                0.01);
  }
}

// Also the path of other processors.
TEST(RetentionAttention, equals_the_reference_without_kernels_of_ours) {
  const CpuLevel before = cpu_level();
  set_cpu_level(CpuLevel::kPortable);
  for (const Case& c : {kRagged[0], Case{{0, 600}, 2, 1, 16}}) {
    const Inputs in = random_inputs(c, at::kFloat);
    expect_near(run(in, c, retention_attention), run(in, c, retention_attention_reference), 1e-5);
  }
  set_cpu_level(before);
}

TEST(RetentionAttention, without_decay_is_dense_attention) {
  const Case c = kRagged[3];
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    Inputs in = random_inputs(c, type);
    in.log_beta.zero_();
    const Results got = run(in, c, retention_attention);
    const Results wanted =
        run(in, c,
            [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const at::Tensor& log_beta, std::span<const int64_t> cu, double scale) {
              std::vector<at::Tensor> parts;
              for (std::size_t b = 0; b + 1 < cu.size(); ++b) {
                const auto heads_first = [&](const at::Tensor& x) {
                  return x.slice(0, cu[b], cu[b + 1]).transpose(0, 1).unsqueeze(0);
                };
                parts.push_back(at::scaled_dot_product_attention(heads_first(q), heads_first(k),
                                                                 heads_first(v), {}, 0.0, true,
                                                                 scale, true)
                                    .squeeze(0)
                                    .transpose(0, 1));
              }
              return at::cat(parts) + 0.0 * log_beta.sum();
            });
    const double tolerance = type == at::kDouble ? 1e-11 : 1e-5;
    EXPECT_LE(distance(got.out, wanted.out), tolerance);
    EXPECT_LE(distance(got.q, wanted.q), tolerance);
    EXPECT_LE(distance(got.k, wanted.k), tolerance);
    EXPECT_LE(distance(got.v, wanted.v), tolerance);
  }
}

TEST(RetentionAttention, documents_do_not_see_each_other) {
  const Case c{{0, 70, 200}, 3, 1, 16};
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Inputs in = random_inputs(c, type);
    const Results both = run(in, c, retention_attention);
    Inputs alone;
    for (const auto x : {&Inputs::q, &Inputs::k, &Inputs::v, &Inputs::log_beta, &Inputs::weight})
      alone.*x = (in.*x).slice(0, 70, 200);
    const Results second = run(alone, {{0, 130}, 3, 1, 16}, retention_attention);
    for (const auto x : {&Results::out, &Results::q, &Results::k, &Results::v, &Results::log_beta})
      EXPECT_TRUE(at::equal((both.*x).slice(0, 70, 200), second.*x)) << at::toString(type);
  }
}

// Gone after one step: each query sees itself, and the newest key nothing else.
TEST(RetentionAttention, keys_that_fade_at_once_leave_the_query_alone) {
  const Case c{{0, 130}, 2, 1, 16};
  for (const double fade : {-1e4, -1e30, -std::numeric_limits<double>::infinity()})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      Inputs in = random_inputs(c, type);
      in.log_beta.fill_(fade);
      const Results got = run(in, c, retention_attention);
      EXPECT_TRUE(at::equal(got.out, in.v.expand({130, 2, 16})));
      EXPECT_TRUE(at::isfinite(got.log_beta).all().item<bool>());
      EXPECT_LE(got.q.abs().max().item<double>(), type == at::kFloat ? 1e-4 : 0.1);
    }
}

TEST(RetentionAttention, large_logits_stay_finite) {
  const Case c{{0, 150}, 2, 1, 16};
  Inputs in = random_inputs(c, at::kFloat);
  in.q.mul_(1e3);
  const Results got = run(in, c, retention_attention);
  expect_near(got, run(in, c, retention_attention_reference), 1e-3);
  EXPECT_TRUE(at::isfinite(got.out).all().item<bool>());
}

// So that training can see it and stop.
TEST(RetentionAttention, nan_reaches_what_reads_it_and_nothing_else) {
  const Case c{{0, 70, 150}, 2, 1, 16};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Inputs in = random_inputs(c, type);
    in.k[90] = NAN;
    const at::Tensor out =
        retention_attention(in.q, in.k, in.v, in.log_beta, c.cu_seqlens, 0.25).isnan();
    EXPECT_FALSE(out.slice(0, 0, 90).any().item<bool>());
    EXPECT_TRUE(out.slice(0, 90, 150).all().item<bool>());
  }
}

TEST(RetentionAttention, threads_change_no_bit) {
  const int before = num_threads();
  const Case c{{0, 40, 700}, 6, 2, 32};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Inputs in = random_inputs(c, type);
    set_num_threads(1);
    const Results once = run(in, c, retention_attention);
    for (const int threads : {2, 3}) {
      set_num_threads(threads);
      const Results again = run(in, c, retention_attention);
      for (const auto x :
           {&Results::out, &Results::q, &Results::k, &Results::v, &Results::log_beta})
        EXPECT_TRUE(at::equal(once.*x, again.*x)) << threads << " threads";
    }
    set_num_threads(before);
  }
}

TEST(RetentionAttention, strides_and_types_of_inputs_do_not_matter) {
  const Case c{{0, 100}, 4, 2, 16};
  const Inputs in = random_inputs(c, at::kFloat);
  const at::Tensor packed = at::cat({in.q, in.k, in.v}, 1);  // [N, Hq + 2 Hkv, D], one product
  const at::Tensor wanted = retention_attention(in.q, in.k, in.v, in.log_beta, c.cu_seqlens, 0.25);
  EXPECT_TRUE(at::equal(
      retention_attention(packed.slice(1, 0, 4), packed.slice(1, 4, 6), packed.slice(1, 6, 8),
                          in.log_beta.t().contiguous().t().to(at::kDouble), c.cu_seqlens, 0.25),
      wanted));
  const at::Tensor fade = in.log_beta.to(at::kDouble).set_requires_grad(true);
  retention_attention(in.q, in.k, in.v, fade, c.cu_seqlens, 0.25).sum().backward();
  EXPECT_EQ(fade.grad().scalar_type(), at::kDouble);
}

TEST(RetentionAttention, an_empty_pack_gives_nothing) {
  const Case c{{0, 0}, 4, 2, 16};
  EXPECT_EQ(run(random_inputs(c, at::kFloat), c, retention_attention).out.numel(), 0);
}

TEST(RetentionAttention, refuses_what_does_not_fit) {
  const Case c{{0, 8}, 4, 2, 16};
  const Inputs in = random_inputs(c, at::kFloat);
  const auto call = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& log_beta, const std::vector<int64_t>& cu) {
    return retention_attention(q, k, v, log_beta, cu, 1.0);
  };
  const std::vector<int64_t>& cu = c.cu_seqlens;
  EXPECT_NO_THROW(call(in.q, in.k, in.v, in.log_beta, cu));
  EXPECT_THROW(call(in.q.slice(1, 0, 3), in.k, in.v, in.log_beta, cu), Error);
  EXPECT_THROW(call(in.q.slice(2, 0, 8), in.k, in.v, in.log_beta, cu), Error);
  EXPECT_THROW(call(in.q, in.k, in.v.slice(0, 1), in.log_beta, cu), Error);
  EXPECT_THROW(call(in.q, in.k.to(at::kDouble), in.v, in.log_beta, cu), Error);
  EXPECT_THROW(call(in.q, in.k, in.v, in.log_beta.slice(1, 0, 1), cu), Error);
  EXPECT_THROW(call(in.q, in.k, in.v, in.log_beta.to(at::kBFloat16), cu), Error);
  for (const std::vector<int64_t>& wrong :
       {std::vector<int64_t>{}, {0}, {0, 7}, {1, 8}, {0, 6, 5, 8}, {0, 9}})
    EXPECT_THROW(call(in.q, in.k, in.v, in.log_beta, wrong), Error);
}

}  // namespace
}  // namespace coppice::ops
