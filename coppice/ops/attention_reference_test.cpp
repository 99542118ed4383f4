#include "coppice/ops/attention_reference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "coppice/core/error.h"

namespace coppice::ops {
namespace {

TEST(AttentionReference, causal_mask_and_window) {
  const at::Tensor mask = causal_mask(2, 4, 0);
  EXPECT_TRUE(
      at::equal(mask.to(at::kLong), at::tensor({1, 1, 1, 0, 1, 1, 1, 1}, at::kLong).view({2, 4})));
  EXPECT_TRUE(at::equal(causal_mask(2, 4, 2).to(at::kLong),
                        at::tensor({0, 1, 1, 0, 0, 0, 1, 1}, at::kLong).view({2, 4})));
}

// Loops over scalars, the definition itself.
TEST(AttentionReference, equals_the_sum_over_visible_keys) {
  const int64_t queries = 3, keys = 5, heads = 4, kv_heads = 2, dims = 6;
  const at::Tensor q = at::randn({queries, heads, dims}, at::kDouble);
  const at::Tensor k = at::randn({keys, kv_heads, dims}, at::kDouble);
  const at::Tensor v = at::randn({keys, kv_heads, dims}, at::kDouble);
  const at::Tensor visible = at::rand({kv_heads, queries, keys}) > 0.4;
  const at::Tensor bias = at::randn({kv_heads, queries, keys}, at::kDouble);
  const at::Tensor out = attention_reference(q, k, v, 0.3, visible, bias);
  for (int64_t t = 0; t < queries; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / 2;
      double total = 0;
      at::Tensor sum = at::zeros({dims}, at::kDouble);
      for (int64_t i = 0; i < keys; ++i) {
        if (!visible[g][t][i].item<bool>()) continue;
        const double logit =
            0.3 * q[t][h].dot(k[i][g]).item<double>() + bias[g][t][i].item<double>();
        total += std::exp(logit);
        sum += std::exp(logit) * v[i][g];
      }
      const at::Tensor wanted = total > 0 ? sum / total : sum;
      EXPECT_LE((out[t][h] - wanted).abs().max().item<double>(), 1e-12);
    }
}

TEST(AttentionReference, a_query_without_keys_gets_zeros) {
  const at::Tensor q = at::randn({2, 1, 4}), k = at::randn({3, 1, 4});
  at::Tensor visible = at::ones({2, 3}, at::kBool);
  visible[0].fill_(false);
  const at::Tensor out = attention_reference(q, k, k, 1.0, visible);
  EXPECT_EQ(out[0].abs().max().item<float>(), 0.0f);
  EXPECT_GT(out[1].abs().max().item<float>(), 0.0f);
}

TEST(AttentionReference, refuses_heads_that_do_not_divide) {
  EXPECT_THROW(attention_reference(at::randn({1, 3, 4}), at::randn({1, 2, 4}), at::randn({1, 2, 4}),
                                   1.0, causal_mask(1, 1, 0)),
               Error);
}

}  // namespace
}  // namespace coppice::ops
