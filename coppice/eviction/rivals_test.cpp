// The rival policies through the whole policy and a real cache: numeric cases of the published
// methods.
//
// Cases give attention as probabilities: with keys one-hot and queries their logs, the softmax
// gives them back. Cases let the lower index win a tie; ours is the newer one, so where a tie
// decides, scores are compared and the kept set is what our rule makes of them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "coppice/eviction/expected_attention.h"
#include "coppice/eviction/rival_testing.h"

namespace coppice {
namespace {

using at::Tensor;
using testing::golden_case;
using testing::matrix;
using testing::Positions;
using testing::Rig;
using testing::with;

// One-hot keys of positions first .. first + count - 1. -> [count, heads, width]
Tensor one_hot(int64_t first, int64_t count, int64_t heads, int64_t width) {
  return at::eye(width)
      .narrow(0, first, count)
      .unsqueeze(1)
      .expand({count, heads, width})
      .contiguous();
}

// Queries whose attention over one-hot keys is attention[head][query][key], the last queries of
// `tokens`. -> [tokens, Hq, width]
Tensor queries_for(const Json& attention, int64_t tokens, int64_t width) {
  const auto heads = static_cast<int64_t>(attention.size());
  Tensor q = at::zeros({tokens, heads, width});
  for (int64_t h = 0; h < heads; ++h) {
    const Tensor p = matrix(attention[static_cast<std::size_t>(h)]).clamp_min(1e-30).log();
    q.narrow(0, tokens - p.size(0), p.size(0)).select(1, h).narrow(1, 0, p.size(1)).copy_(p);
  }
  return q;
}

void expect_scores(const std::map<int32_t, float>& got, const Json& expected, double scale = 1.0) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto found = got.find(static_cast<int32_t>(i));
    if (found == got.end()) continue;  // evicted
    EXPECT_NEAR(found->second * scale, expected[i].get<double>(), 1e-5) << "entry " << i;
  }
}

TEST(GoldenRivals, h2o_prefill_and_a_decode_step) {
  const Json item = golden_case("h2o_prefill"), step = golden_case("h2o_decode_step");
  Rig rig(with("h2o", 4), 1, 2, 7);
  EXPECT_EQ(rig.policy.config().recent, 2);
  rig.append({one_hot(0, 6, 2, 7)}, {queries_for(item["inputs"]["attention"], 6, 7)});
  rig.policy.note_appended(rig.cache, rig.id);
  for (std::size_t h = 0; h < 2; ++h)
    expect_scores(rig.scores(0, static_cast<int64_t>(h)), item["expected"]["scores"][h]);
  rig.cache.commit(rig.id);
  EXPECT_EQ(rig.policy.evict(rig.cache, rig.id), 4);
  EXPECT_EQ(rig.policy.evict(rig.cache, rig.id), 0);  // K36: twice changes nothing
  for (std::size_t h = 0; h < 2; ++h)
    EXPECT_EQ(rig.kept(0, static_cast<int64_t>(h)), item["expected"]["kept"][h].get<Positions>());
  Tensor q = at::full({1, 2, 7}, -80.0);
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t i = 0; i < 5; ++i)
      q[0][static_cast<int64_t>(h)][step["expected"]["token_ids_scored"][h][i].get<int64_t>()] =
          std::log(step["inputs"]["new_query_attention"][h][i].get<double>());
  rig.append({one_hot(6, 1, 2, 7)}, {q});
  rig.policy.note_appended(rig.cache, rig.id);
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(rig.scores(0, static_cast<int64_t>(h))
                      .at(step["expected"]["token_ids_scored"][h][i].get<int32_t>()),
                  step["expected"]["scores"][h][i].get<double>(), 1e-5);
  rig.cache.commit(rig.id);
  rig.policy.evict(rig.cache, rig.id);
  for (std::size_t h = 0; h < 2; ++h)
    EXPECT_EQ(rig.kept(0, static_cast<int64_t>(h)), step["expected"]["kept"][h].get<Positions>());
}

TEST(GoldenRivals, K05_h2o_takes_the_mean_of_a_group) {
  const Json item = golden_case("h2o_gqa_group_mean");
  Rig rig(with("h2o", 4), 1, 1, 6);
  rig.pass({one_hot(0, 6, 1, 6)}, {queries_for(item["inputs"]["attention"], 6, 6)});
  expect_scores(rig.scores(0, 0), item["expected"]["scores"][0]);
  EXPECT_EQ(rig.kept(0, 0), item["expected"]["kept"][0].get<Positions>());
  // Query head 5 of 8 pays all to token 3: that is KV head 1 of 2, and no other's business.
  Rig grouped(with("h2o", 4, {}), 1, 2, 12);
  Tensor q = at::zeros({12, 8, 12});
  q.select(1, 5).select(1, 3).fill_(50.0);
  grouped.pass({one_hot(0, 12, 2, 12)}, {q});
  EXPECT_EQ(grouped.kept(0, 1)[1], 3);
  EXPECT_NE(grouped.kept(0, 0)[1], 3);
}

TEST(GoldenRivals, tova_prefill_and_a_decode_step) {
  const Json item = golden_case("tova_official"), step = golden_case("tova_decode_step");
  Json attention = Json::array();
  for (const Json& row : item["inputs"]["last_query_attention"])
    attention.push_back(Json::array({row}));
  Rig rig(with("tova", 4), 1, 2, 7);
  rig.pass({one_hot(0, 6, 2, 7)}, {queries_for(attention, 6, 7)});
  for (int64_t h = 0; h < 2; ++h) {
    expect_scores(rig.scores(0, h), item["expected"]["scores"]);
    EXPECT_EQ(rig.kept(0, h), item["expected"]["kept"][0].get<Positions>());
  }
  Tensor q = at::full({1, 2, 7}, -80.0);
  const Positions held = {0, 2, 3, 4, 6};
  for (std::size_t i = 0; i < 5; ++i)
    q.select(2, held[i])
        .fill_(std::log(step["inputs"]["head_mean_new_query_attention"][i].get<double>()));
  rig.pass({one_hot(6, 1, 2, 7)}, {q});
  for (int64_t h = 0; h < 2; ++h)
    EXPECT_EQ(rig.kept(0, h), step["expected"]["kept"][0].get<Positions>());
}

TEST(GoldenRivals, snapkv_windows_and_pools) {
  const std::map<std::string, std::vector<Positions>> by_newer_first = {
      {"snapkv_official_maxpool_ties", {{2, 3, 6, 7}, {4, 5, 6, 7}}},
      {"snapkv_gqa_group_mean_then_maxpool", {{4, 5, 6, 7}}}};
  for (const char* name : {"snapkv_official_avgpool_per_query_head", "snapkv_official_maxpool_ties",
                           "snapkv_gqa_group_mean_then_maxpool"}) {
    SCOPED_TRACE(name);
    const Json item = golden_case(name);
    const bool max = item["params"]["pooling"] == "maxpool";
    const int64_t heads = item["inputs"]["num_kv_heads"];
    Rig rig(with("snapkv", 4, {{"window", "2"}, {"kernel", "3"}, {"pool", max ? "max" : "avg"}}), 1,
            heads, 8);
    EXPECT_EQ(rig.policy.config().recent, 2);
    rig.pass({one_hot(0, 8, heads, 8)}, {queries_for(item["inputs"]["window_attention"], 8, 8)});
    for (int64_t h = 0; h < heads; ++h) {
      const auto n = static_cast<std::size_t>(h);
      expect_scores(rig.scores(0, h), item["expected"]["scores"][n], 2.0);  // theirs are sums
      EXPECT_EQ(rig.kept(0, h), by_newer_first.contains(name)
                                    ? by_newer_first.at(name)[n]
                                    : item["expected"]["kept"][n].get<Positions>());
    }
  }
  const Json item = golden_case("snapkv_from_qk");
  Rig rig(with("snapkv", 4, {{"window", "2"}, {"kernel", "1"}, {"pool", "avg"}}), 1, 1, 2);
  Tensor q = at::zeros({6, 1, 2});
  q.narrow(0, 4, 2).select(1, 0).copy_(matrix(item["inputs"]["window_queries"][0]) /
                                       std::sqrt(2.0));
  rig.pass({matrix(item["inputs"]["keys"][0]).unsqueeze(1)}, {q});
  expect_scores(rig.scores(0, 0), item["expected"]["scores"][0], 2.0);
  EXPECT_EQ(rig.kept(0, 0), item["expected"]["kept"][0].get<Positions>());
}

// Attention of a window of two over 8 keys whose mean over the window is half of `scores`[key]
// before the window.
Json window_with(const Json& scores) {
  Json rows = Json::array();
  for (int query = 6; query < 8; ++query) {
    Json row = Json::array();
    double left = 1.0;
    for (const Json& score : scores) {
      row.push_back(score.get<double>() / 2);
      left -= score.get<double>() / 2;
    }
    row.push_back(query == 6 ? left : left / 2);
    row.push_back(query == 6 ? 0.0 : left / 2);
    rows.push_back(row);
  }
  return rows;
}

Tensor queries_of_heads(const Json& scores_of_heads) {
  Json attention = Json::array();
  for (const Json& scores : scores_of_heads) attention.push_back(window_with(scores));
  return queries_for(attention, 8, 8);
}

TEST(GoldenRivals, pyramidkv_adakv_and_both) {
  const OptionMap snap = {{"window", "2"}, {"kernel", "1"}};
  const auto plus = [&](OptionMap more) {
    more.insert(snap.begin(), snap.end());
    return more;
  };
  const Json pyramid = golden_case("pyramidkv_selection");
  Rig first(with("pyramidkv", 4, plus({{"beta", "2"}})), 2, 1, 8);
  const Json& by_layer = pyramid["inputs"]["pooled_scores"];
  first.pass({one_hot(0, 8, 1, 8), one_hot(0, 8, 1, 8)},
             {queries_of_heads(by_layer[0]), queries_of_heads(by_layer[1])});
  for (int64_t l = 0; l < 2; ++l)
    EXPECT_EQ(
        first.kept(l, 0),
        pyramid["expected"]["kept_by_layer"][static_cast<std::size_t>(l)][0].get<Positions>());

  const Json ada = golden_case("adakv_official");
  Rig second(with("adakv", 4, plus({{"alpha", "0.5"}})), 1, 2, 8);
  second.pass({one_hot(0, 8, 2, 8)}, {queries_of_heads(ada["inputs"]["pooled_scores"])});
  for (int64_t h = 0; h < 2; ++h)
    EXPECT_EQ(second.kept(0, h),
              ada["expected"]["kept"][static_cast<std::size_t>(h)].get<Positions>());

  // Theirs loses an entry per layer to a truncated floor; ours keeps 6 + 2 besides the windows, of
  // heads that get (0.5 x 4 + 0.5 x 3, 0.5 x 2 + 0.5 x 3) and (0.5 x 2 + 0.5 x 1, 0 + 0.5 x 1).
  const Json both = golden_case("ada_pyramid_official");
  Rig third(with("ada-pyramid", 4, plus({{"alpha", "0.5"}, {"beta", "2"}})), 2, 2, 8);
  const Json& heads = both["inputs"]["pooled_scores"];
  third.pass({one_hot(0, 8, 2, 8), one_hot(0, 8, 2, 8)},
             {queries_of_heads(heads[0]), queries_of_heads(heads[1])});
  EXPECT_EQ(third.kept(0, 0),
            (Positions{0, 2, 3, 5, 6, 7}));  // 3.5: the tie goes to the lower head
  EXPECT_EQ(third.kept(0, 1), (Positions{0, 1, 6, 7}));
  EXPECT_EQ(third.kept(1, 0), (Positions{0, 2, 6, 7}));
  EXPECT_EQ(third.kept(1, 1), (Positions{6, 7}));
}

TEST(GoldenRivals, rkv_importance_less_redundancy) {
  for (const char* name : {"rkv_kernel1", "rkv_kernel3", "rkv_lambda_0_25"}) {
    SCOPED_TRACE(name);
    const Json item = golden_case(name);
    const Json& params = item["params"];
    Rig rig(with("rkv", params["budget"],
                 {{"window", "2"},
                  {"kernel", std::to_string(params["kernel"].get<int>())},
                  {"lambda", params["mix_lambda"].dump()}}),
            1, 1, 2);
    Tensor q = at::zeros({8, 2, 2});
    for (int64_t h = 0; h < 2; ++h)
      q.narrow(0, 6, 2).select(1, h).copy_(
          matrix(item["inputs"]["window_queries"][static_cast<std::size_t>(h)]) / std::sqrt(2.0));
    rig.pass({matrix(item["inputs"]["keys"][0]).unsqueeze(1)}, {q});
    expect_scores(rig.scores(0, 0), item["expected"]["scores"][0]);
    EXPECT_EQ(rig.kept(0, 0), item["expected"]["kept"][0].get<Positions>());
  }
}

TEST(GoldenRivals, keydiff_at_once_and_in_blocks) {
  const Json item = golden_case("keydiff_basic"), blocks = golden_case("keydiff_blockwise");
  Rig rig(with("keydiff", 3), 1, 2, 2);
  const Json& keys = item["inputs"]["keys"];
  Tensor k = at::zeros({6, 2, 2});
  for (int64_t h = 0; h < 2; ++h) k.select(1, h).copy_(matrix(keys[static_cast<std::size_t>(h)]));
  rig.pass({k}, {});
  for (int64_t h = 0; h < 2; ++h) {
    const auto n = static_cast<std::size_t>(h);
    expect_scores(rig.scores(0, h), item["expected"]["scores"][n]);
    EXPECT_EQ(rig.kept(0, h), item["expected"]["kept"][n].get<Positions>());
  }
  Rig slow(with("keydiff", 3), 1, 1, 2), once(with("keydiff", 3), 1, 1, 2);
  const Tensor all = matrix(blocks["inputs"]["keys"][0]).unsqueeze(1);
  once.pass({all}, {});
  EXPECT_EQ(once.kept(0, 0), blocks["expected"]["kept_single_shot"][0].get<Positions>());
  int64_t first = 0;
  for (const int64_t count : {3, 2, 2, 1}) {
    slow.pass({all.narrow(0, first, count)}, {});
    first += count;
  }
  EXPECT_EQ(slow.kept(0, 0), blocks["expected"]["kept"][0].get<Positions>());
}

TEST(GoldenRivals, expected_attention_scores) {
  for (const char* name : {"expected_attention_mean_only", "expected_attention_mean_cov",
                           "expected_attention_full", "expected_attention_full_epsilon"}) {
    SCOPED_TRACE(name);
    const Json item = golden_case(name);
    const Json &inputs = item["inputs"], &params = item["params"];
    const Tensor keys = matrix(inputs["keys"][0]), mean = matrix(inputs["mean_query_after_rope"]);
    Tensor covariance;
    if (params["use_covariance"].get<bool>()) {
      covariance = at::zeros({2, 2, 2});
      for (int64_t h = 0; h < 2; ++h)
        covariance[h].copy_(matrix(inputs["cov_query_after_rope"][static_cast<std::size_t>(h)]) /
                            2.0);
    }
    const Tensor p = expected_probabilities(mean / std::sqrt(2.0), covariance,
                                            keys.narrow(0, 2, 4));  // behind two sinks
    const Json& expected = item["expected"];
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < 4; ++j)
        EXPECT_NEAR(p[h][j].item<double>(),
                    expected["attention_per_query_head"][static_cast<std::size_t>(h)]
                            [static_cast<std::size_t>(j)]
                                .get<double>(),
                    1e-5);
    Tensor worth = p.mean(0) + params["epsilon"].get<double>();
    if (params["use_vnorm"].get<bool>())
      worth *= matrix(inputs["values"][0]).narrow(0, 2, 4).norm(2, -1);
    for (int64_t j = 0; j < 4; ++j)
      EXPECT_NEAR(worth[j].item<double>(),
                  expected["scores"][0][static_cast<std::size_t>(j + 2)].get<double>(), 1e-5);
  }
}

// From rotated queries in two passes to the statistics, through the policy: its scores equal those
// of the expected mean and covariance.
TEST(GoldenRivals, expected_attention_statistics) {
  const Json item = golden_case("expected_attention_statistics");
  const Json& expected = item["expected"];
  const Tensor inv_freq = at::full({1}, 1.0),
               before = matrix(item["inputs"]["pre_rope_queries"][0]);
  const Tensor mean_turn = mean_rotation(inv_freq, 6, 4);
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 2; ++j)
      EXPECT_NEAR(
          mean_turn[i][j].item<double>(),
          expected["mean_rotation"][static_cast<std::size_t>(i)][static_cast<std::size_t>(j)]
              .get<double>(),
          1e-5);
  // Rotating back by -p is rotating by p.
  Tensor rotated = at::zeros({6, 1, 2});
  for (int64_t t = 0; t < 6; ++t)
    rotated.narrow(0, t, 1).copy_(
        unrotate(before.narrow(0, t, 1).unsqueeze(1), at::full({1, 1}, -static_cast<double>(t))));
  const Tensor keys =
      at::tensor({0.5f, 1.0f, -0.3f, 0.2f, 1.1f, -0.4f, 0.7f, 0.9f, -1.0f, 0.1f, 0.3f, -0.8f})
          .view({6, 1, 2});
  EvictionConfig config = with("expected-attention", 6, {{"future", "4"}, {"value-norm", "off"}});
  config.sinks = 2;
  Rig rig(config, 1, 1, 2);
  int64_t first = 0;
  for (const int64_t count : {4, 2}) {
    ASSERT_TRUE(rig.cache.reserve(rig.id, count));
    const Tensor k = keys.narrow(0, first, count);
    rig.cache.append(0, rig.id, k, k, {}, {});
    PassQueries pass;
    pass.q = rotated.narrow(0, first, count);
    pass.turns = at::arange(first, first + count, at::kDouble).unsqueeze(1) * inv_freq;
    pass.inv_freq = inv_freq;
    rig.policy.observe(rig.cache, rig.id, pass, 1.0 / std::sqrt(2.0));
    rig.finish();
    first += count;
  }
  EvictionConfig smaller = config;
  smaller.budget_entries = 5;
  EvictionPolicy(smaller, rig.cache.config()).evict(rig.cache, rig.id);
  const Tensor p =
      expected_probabilities(matrix(expected["mean_after_rope"]) / std::sqrt(2.0),
                             matrix(expected["covariance_after_rope"][0]).unsqueeze(0) / 2.0,
                             keys.narrow(0, 2, 4).select(1, 0));
  const auto scores = rig.scores(0, 0);
  EXPECT_EQ(scores.size(), 5u);
  for (const auto& [position, score] : scores)
    if (position >= 2) {
      EXPECT_NEAR(score, p[0][position - 2].item<double>(), 1e-5) << position;
    }
}

// Cake by hand: two layers of one head, keys one-hot. The second layer's attention is spread and
// changes; the first one's is neither.
TEST(Rivals, cake_gives_to_layers_whose_attention_is_spread_and_restless) {
  Rig rig(with("cake", 5, {{"window", "2"}, {"kernel", "1"}}), 2, 1, 10);
  Tensor calm = at::zeros({10, 1, 10}), restless = at::zeros({10, 1, 10});
  calm.narrow(0, 8, 2).select(2, 0).fill_(12.0);
  restless[8][0][3] = 2.0;
  restless[9][0][5] = 2.0;
  rig.pass({one_hot(0, 10, 1, 10), one_hot(0, 10, 1, 10)}, {calm, restless});
  const Positions first = rig.kept(0, 0), second = rig.kept(1, 0);
  EXPECT_EQ(first.size() + second.size(), 10u);
  EXPECT_EQ(first, (Positions{8, 9}));  // nothing changes there
  EXPECT_EQ(second.size(), 8u);
  for (const int32_t position : {3, 5, 8, 9})
    EXPECT_TRUE(std::find(second.begin(), second.end(), position) != second.end()) << position;
}

}  // namespace
}  // namespace coppice
