#include "coppice/ops/need_labels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

constexpr NeedUtility kUtilities[] = {NeedUtility::kLeaveOneOut, NeedUtility::kAttentionValue,
                                      NeedUtility::kAttention};

struct Case {
  std::vector<int64_t> cu_seqlens;
  int64_t heads, kv_heads, dims;
};

NeedInput random_input(const Case& c, at::ScalarType type) {
  const int64_t n = c.cu_seqlens.back();
  NeedInput in;
  in.q = (at::randn({n, c.heads, c.dims}, at::kDouble) * 2).to(type);
  in.k = (at::randn({n, c.kv_heads, c.dims}, at::kDouble) * 2).to(type);
  in.v = at::randn({n, c.kv_heads, c.dims}, at::kDouble).to(type);
  in.output_weight = at::randn({11, c.heads * c.dims}, at::kDouble).to(type);
  in.residual_norm = at::rand({n}) + 0.5;
  in.sensitivity = at::rand({c.kv_heads}) + 0.5;
  in.cu_seqlens = c.cu_seqlens;
  in.scale = 1.0 / std::sqrt(c.dims);
  return in;
}

double length_of(const at::Tensor& x) { return x.norm().item<double>(); }

// The definition, one pair at a time.
double utility(const NeedInput& in, int64_t first, int64_t t, int64_t i, int64_t head) {
  const int64_t group = in.q.size(1) / in.k.size(1), dims = in.q.size(2);
  double most = 0;
  for (int64_t g = head * group; g < (head + 1) * group; ++g) {
    const at::Tensor q = in.q[t][g], keys = in.k.slice(0, first, t + 1).select(1, head);
    const at::Tensor p = at::softmax(at::matmul(keys, q) * in.scale, 0);
    const at::Tensor o = at::matmul(p, in.v.slice(0, first, t + 1).select(1, head));
    const at::Tensor w = in.output_weight.slice(1, g * dims, (g + 1) * dims);
    const double weight = p[i - first].item<double>();
    const double r = in.residual_norm[t].item<double>();
    const double value = length_of(at::matmul(w, in.v[i][head])), out = length_of(at::matmul(w, o));
    double u = weight;
    if (in.utility == NeedUtility::kAttentionValue) u = weight * value / r;
    if (in.utility == NeedUtility::kLeaveOneOut)
      u = weight / (1 - weight + 1e-3) * std::sqrt(out * out + value * value) / r;
    most = std::max(most, u);
  }
  return most * in.sensitivity[head].item<double>();
}

TEST(NeedLabels, equal_the_definition) {
  const Case c{{0, 3, 24, 24, 45}, 4, 2, 5};
  NeedInput in = random_input(c, at::kDouble);
  for (const NeedUtility kind : kUtilities) {
    in.utility = kind;
    const NeedLabels labels = need_labels(in);
    for (std::size_t b = 0; b + 1 < c.cu_seqlens.size(); ++b)
      for (int64_t i = c.cu_seqlens[b]; i < c.cu_seqlens[b + 1]; ++i)
        for (int64_t h = 0; h < c.kv_heads; ++h) {
          const int64_t first = c.cu_seqlens[b], length = c.cu_seqlens[b + 1] - first;
          std::vector<double> ages(kNeedAges, 0.0), cuts(kNeedCuts, 0.0);
          for (int64_t t = i; t < c.cu_seqlens[b + 1]; ++t) {
            const double u = utility(in, first, t, i, h);
            for (int64_t k = 0; k < kNeedAges; ++k)
              if (t - i >= 4 << k && t - i < 8 << k) ages[k] = std::max(ages[k], u);
            for (int64_t k = 0; k < kNeedCuts; ++k) {
              const int64_t cut = first + length * (k + 1) / 4;
              if (i < cut && t >= cut) cuts[k] = std::max(cuts[k], u);
            }
          }
          for (int64_t k = 0; k < kNeedAges; ++k)
            EXPECT_NEAR(labels.ages[i][h][k].item<double>(), std::max(std::log(ages[k]), -30.0),
                        1e-5);
          for (int64_t k = 0; k < kNeedCuts; ++k)
            EXPECT_NEAR(labels.cuts[i][h][k].item<double>(), std::max(std::log(cuts[k]), -30.0),
                        1e-5);
        }
  }
}

// One cut per document: the largest utility over the queries behind it, of entries of any age.
TEST(NeedLabels, a_cut_of_ones_own_divides_keys_from_queries) {
  const Case c{{0, 20, 20, 33}, 4, 2, 5};
  const std::vector<int64_t> cut_at = {9, 0, 13};
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const NeedUtility kind : kUtilities) {
      NeedInput in = random_input(c, type);
      in.utility = kind;
      in.cut_at = cut_at;
      const at::Tensor got = need_labels(in).cuts;
      for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.output_weight}) *x = x->to(at::kDouble);
      for (std::size_t b = 0; b < cut_at.size(); ++b)
        for (int64_t i = c.cu_seqlens[b]; i < c.cu_seqlens[b + 1]; ++i)
          for (int64_t h = 0; h < c.kv_heads; ++h) {
            const int64_t first = c.cu_seqlens[b], cut = first + cut_at[b];
            double most = 0.0;
            for (int64_t t = cut; i < cut && t < c.cu_seqlens[b + 1]; ++t)
              most = std::max(most, utility(in, first, t, i, h));
            for (int64_t k = 0; k < kNeedCuts; ++k)
              EXPECT_NEAR(got[i][h][k].item<double>(), std::max(std::log(most), -30.0),
                          type == at::kBFloat16 ? 4e-2
                          : type == at::kFloat  ? 1e-2
                                                : 1e-5);
          }
    }
}

// Case kvzip_score of the baselines: attention of two query heads by two queries of a repetition
// over four keys; the keys of the repetition itself weigh nothing.
TEST(NeedLabels, kvzip_scores_are_maxima_over_heads_and_queries) {
  const at::Tensor p =
      at::tensor({.5, .1, .3, .1, .2, .4, .1, .3, .1, .2, .6, .1, .25, .15, .2, .4}, at::kDouble)
          .view({2, 2, 4});  // [head, query, key]
  NeedInput in;
  in.q = at::zeros({6, 2, 5}, at::kDouble);
  in.k = at::zeros({6, 1, 5}, at::kDouble);
  for (int64_t i = 0; i < 4; ++i) in.k[i][0][i] = 1.0;
  for (int64_t t = 4; t < 6; ++t) {
    in.k[t][0][4] = 1.0;
    for (int64_t g = 0; g < 2; ++g) {
      in.q[t][g].slice(0, 0, 4).copy_(p[g][t - 4].log());
      in.q[t][g][4] = -1e4;
    }
  }
  in.v = at::zeros({6, 1, 5}, at::kDouble);
  const std::vector<int64_t> cu = {0, 6}, cut_at = {4};
  in.cu_seqlens = cu;
  in.cut_at = cut_at;
  in.utility = NeedUtility::kAttention;
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    for (at::Tensor* x : {&in.q, &in.k, &in.v}) *x = x->to(type);
    const at::Tensor score = need_labels(in).cuts.select(2, 0).exp();
    const double wanted[] = {.5, .4, .6, .4};
    for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(score[i][0].item<double>(), wanted[i], 1e-5);
  }
}

// Removing a key moves the output by P / (1 - P) (o - v).
TEST(NeedLabels, leave_one_out_is_exact) {
  const at::Tensor logits = at::randn({9}, at::kDouble), v = at::randn({9, 4}, at::kDouble);
  const at::Tensor p = at::softmax(logits, 0), o = at::matmul(p, v);
  for (int64_t i = 0; i < 9; ++i) {
    const at::Tensor rest = logits.clone();
    rest[i] = -INFINITY;
    const at::Tensor moved = at::matmul(at::softmax(rest, 0), v) - o;
    EXPECT_LE(length_of(moved - p[i] / (1 - p[i]) * (o - v[i])), 1e-12);
  }
}

TEST(NeedLabels, equal_the_reference) {
  for (const Case& c : {Case{{0, 5, 69, 300}, 6, 2, 64}, Case{{0, 200}, 7, 1, 7},
                        Case{{0, 64, 64, 2300}, 2, 1, 16}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const NeedUtility kind : kUtilities) {
        NeedInput in = random_input(c, type);
        in.utility = kind;
        const NeedLabels got = need_labels(in);
        for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.output_weight}) *x = x->to(at::kDouble);
        const NeedLabels wanted = need_labels_reference(in);
        // P / (1 - P + 1e-3) magnifies the rounding of P near 1, and the output is rounded.
        const double tolerance = type == at::kFloat ? 1e-2 : 2e-2;
        EXPECT_LE((got.ages - wanted.ages).abs().max().item<double>(), tolerance);
        EXPECT_LE((got.cuts - wanted.cuts).abs().max().item<double>(), tolerance);
        EXPECT_LE((got.ages - wanted.ages).abs().mean().item<double>(), tolerance / 100);
      }
}

TEST(NeedLabels, documents_in_any_order_have_the_same_labels) {
  const Case c{{0, 90, 200}, 3, 1, 16};
  const NeedInput in = random_input(c, at::kFloat);
  const auto swapped = [](const at::Tensor& x) {
    return at::cat({x.slice(0, 90, 200), x.slice(0, 0, 90)}, 0);
  };
  NeedInput other = in;
  const std::vector<int64_t> cu = {0, 110, 200};
  other.cu_seqlens = cu;
  for (at::Tensor NeedInput::*x :
       {&NeedInput::q, &NeedInput::k, &NeedInput::v, &NeedInput::residual_norm})
    other.*x = swapped(in.*x);
  EXPECT_LE((swapped(need_labels(in).ages) - need_labels(other).ages).abs().max().item<float>(),
            1e-4F);
}

TEST(NeedLabels, threads_change_no_bit) {
  const int before = num_threads();
  const Case c{{0, 100, 400}, 6, 2, 32};
  const NeedInput in = random_input(c, at::kBFloat16);
  const NeedLabels once = need_labels(in);
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    const NeedLabels again = need_labels(in);
    EXPECT_TRUE(at::equal(once.ages, again.ages));
    EXPECT_TRUE(at::equal(once.cuts, again.cuts));
  }
  set_num_threads(before);
}

TEST(NeedLabels, refuse_what_does_not_fit) {
  const Case c{{0, 8}, 4, 2, 8};
  const NeedInput in = random_input(c, at::kFloat);
  NeedInput wrong = in;
  wrong.output_weight = at::randn({3, 7});
  EXPECT_THROW(need_labels(wrong), Error);
  wrong = in;
  wrong.residual_norm = at::Tensor();
  EXPECT_THROW(need_labels(wrong), Error);
  wrong.utility = NeedUtility::kAttention;
  EXPECT_EQ(need_labels(wrong).ages.size(2), kNeedAges);
  wrong = in;
  wrong.sensitivity = at::ones({3});
  EXPECT_THROW(need_labels(wrong), Error);
  const std::vector<int64_t> two_cuts = {4, 4}, late_cut = {9};
  for (const std::vector<int64_t>& cut_at : {two_cuts, late_cut}) {
    wrong = in;
    wrong.cut_at = cut_at;
    EXPECT_THROW(need_labels(wrong), Error);
  }
  wrong = in;
  wrong.q = at::randn({8, 3, 8});
  EXPECT_THROW(need_labels(wrong), Error);
  const std::vector<int64_t> cu = {0, 9};
  wrong = in;
  wrong.cu_seqlens = cu;
  EXPECT_THROW(need_labels(wrong), Error);
}

}  // namespace
}  // namespace coppice::ops
