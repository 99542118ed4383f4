#include "coppice/eval/perplexity.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "coppice/attention/dense_backend.h"
#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/engine/engine_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kRows = 6;

std::vector<int32_t> text_of(int64_t tokens) {
  Rng rng(12);
  return random_prompt(rng, tokens);
}

// One pass of plain causal attention over a context, scored by hand.
double dense_nll(Model& model, std::span<const int32_t> ids) {
  const auto n = static_cast<int64_t>(ids.size());
  const c10::InferenceMode inference;
  Batch batch;
  batch.token_ids = torch::empty({n}, torch::kLong);
  for (int64_t i = 0; i < n; ++i) batch.token_ids[i] = ids[static_cast<std::size_t>(i)];
  batch.positions = torch::arange(n);
  batch.sequence_ids = {0};
  batch.cu_seqlens = {0, n};
  DenseBackend backend;
  const at::Tensor log_p = torch::log_softmax(model.logits(model.forward(batch, backend)), 1);
  double nll = 0.0;
  for (int64_t i = n / 2; i <= n - 2; ++i) {
    nll -= log_p[i][ids[static_cast<std::size_t>(i) + 1]].item<double>();
  }
  return nll;
}

TEST(Perplexity, the_full_cache_equals_one_dense_pass) {
  const std::shared_ptr<Model> model = tiny_model();
  const std::vector<int32_t> ids = text_of(90);
  PerplexityOptions options{.context_tokens = 40, .contexts = 2, .chunk_tokens = 7};
  int64_t last = 0;
  const PerplexityResult result =
      evaluate_perplexity(*model, ids, options, [&](int64_t read, int64_t in_all) {
        EXPECT_GT(read, last);
        EXPECT_EQ(in_all, 80);
        last = read;
        return true;
      });
  const double first = dense_nll(*model, std::span(ids).first(40));
  const double second = dense_nll(*model, std::span(ids).subspan(40, 40));
  EXPECT_EQ(last, 80);
  EXPECT_EQ(result.scored_tokens, 2 * 19);  // positions 20 .. 38 of each
  EXPECT_NEAR(result.mean_nll, (first + second) / 38, 1e-5);
  EXPECT_NEAR(result.perplexity, std::exp(result.mean_nll), 1e-9);
  ASSERT_EQ(result.running_perplexity.size(), 2u);
  EXPECT_NEAR(result.running_perplexity[0], std::exp(first / 19), 1e-3);
  EXPECT_EQ(result.kept_entries, 40 * kRows);
  EXPECT_EQ(result.evicted_entries, 0);
  EXPECT_EQ(result.kept_per_layer, (std::vector<int64_t>{80, 80, 80}));
}

TEST(Perplexity, K15_a_budget_is_kept_exactly_and_changes_the_result) {
  const std::shared_ptr<Model> model = tiny_model();
  const std::vector<int32_t> ids = text_of(120);
  PerplexityOptions options{.context_tokens = 120, .chunk_tokens = 8};
  const double full = evaluate_perplexity(*model, ids, options).mean_nll;
  for (const char* policy : {"streaming", "dbtrimkv", "trimkv", "knorm"}) {
    options.eviction = {.policy = policy, .budget_entries = 12};
    const PerplexityResult result = evaluate_perplexity(*model, ids, options);
    EXPECT_EQ(result.kept_entries, 12 * kRows) << policy;
    EXPECT_EQ(result.evicted_entries, (120 - 12) * kRows);
    EXPECT_EQ(result.peak_entries, (12 + 8) * kRows);
    EXPECT_LE(result.bytes_peak, result.bytes_bound);
    EXPECT_LE(result.shortest_row, 12);
    EXPECT_GE(result.longest_row, 12);
    EXPECT_GT(std::abs(result.mean_nll - full), 1e-4) << policy;
    options.eviction.budget_entries = 120;
    EXPECT_NEAR(evaluate_perplexity(*model, ids, options).mean_nll, full, 1e-6) << policy;
  }
}

TEST(Perplexity, bad_options_are_refused) {
  const std::shared_ptr<Model> model = tiny_model(/*gated=*/false);
  const std::vector<int32_t> ids = text_of(100);
  const auto code = [&](const PerplexityOptions& options, const std::vector<int32_t>& text) {
    return code_of([&] { evaluate_perplexity(*model, text, options); });
  };
  EXPECT_EQ(code({.context_tokens = 3}, ids), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.context_tokens = 50, .contexts = 3}, ids), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.context_tokens = 50, .contexts = 0}, ids), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.context_tokens = 50, .chunk_tokens = 0}, ids), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.context_tokens = kRange + 1}, text_of(kRange + 1)), ErrorCode::kCapacity);
  EXPECT_EQ(code({.context_tokens = 4}, {1, 2, -1, 3}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(
      code({.context_tokens = 50, .eviction = {.policy = "dbtrimkv", .budget_entries = 8}}, ids),
      ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] {
              evaluate_perplexity(*model, ids, {.context_tokens = 50},
                                  [](int64_t, int64_t) { return false; });
            }),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice
