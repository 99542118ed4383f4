#include "coppice/eval/agreement.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "coppice/core/error.h"
#include "coppice/engine/engine_testing.h"
#include "coppice/eval/eval_testing.h"
#include "coppice/eval/evaluator.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kContext = 40, kNew = 12, kBudget = 10;

EvalModel eval_model() {
  return {.model = tiny_model(), .kv_dtype = at::kFloat, .chunk_tokens = 8};
}

CacheConfig sizes_of(const EvalModel& model) {
  return cache_config(model.model->args(), model.kv_dtype, c10::Device(c10::kCPU));
}

std::vector<EvalDocument> documents(int64_t count) {
  Rng rng(5);
  std::vector<EvalDocument> all;
  for (int64_t i = 0; i < count; ++i)
    all.push_back({i, fmt::format("d{}", i), "test", random_prompt(rng, kContext + 5)});
  return all;
}

// Plain causal attention in which queries from `row` on do not see the keys begin .. end - 1.
struct MaskedBackend final : AttentionBackend {
  int64_t row = 0, begin = 0, end = 0;

  at::Tensor forward(const AttentionInput& input, const Batch&) override {
    const int64_t n = input.q.size(0), group = input.q.size(1) / input.k.size(1);
    at::Tensor mask = torch::ones({n, n}, torch::kBool).tril();
    mask.narrow(0, row, n - row).narrow(1, begin, end - begin).fill_(false);
    const at::Tensor k = input.k.repeat_interleave(group, 1),
                     v = input.v.repeat_interleave(group, 1);
    const at::Tensor scores = torch::einsum("qhd,khd->hqk", {input.q, k}) * input.scale;
    const double low = -std::numeric_limits<double>::infinity();
    return torch::einsum("hqk,khd->qhd", {scores.masked_fill(~mask, low).softmax(-1), v});
  }
};

// -> [T, V], log-softmax
at::Tensor masked_log_p(const EvalModel& model, const std::vector<int32_t>& ids, int64_t row,
                        int64_t begin, int64_t end) {
  const c10::InferenceMode inference;
  MaskedBackend backend;
  backend.row = row;
  backend.begin = begin;
  backend.end = end;
  const auto n = static_cast<int64_t>(ids.size());
  Batch batch;
  batch.token_ids = torch::tensor(std::vector<int64_t>(ids.begin(), ids.end()));
  batch.positions = torch::arange(n);
  batch.sequence_ids = {0};
  batch.cu_seqlens = {0, n};
  return torch::log_softmax(model.model->logits(model.model->forward(batch, backend)), 1);
}

// The engine's greedy continuation of a prompt under a setting.
std::vector<int32_t> continuation(const EvalModel& model, const std::vector<int32_t>& prompt,
                                  const EvictionConfig& eviction) {
  EngineConfig config;
  config.eviction = eviction;
  config.chunk_tokens = model.chunk_tokens;
  config.max_blocks = 4096;
  Engine engine(model.model, config);
  Request request;
  request.prompt = prompt;
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = kNew;
  request.sampling.ignore_eos = true;
  std::vector<int32_t> ids;
  for (const SampledToken& token : engine.run(request).tokens) ids.push_back(token.id);
  return ids;
}

TEST(Agreement, AFullBudgetAgreesExactlyUnderEveryPolicy) {
  const EvalModel model = eval_model();
  AgreementTask task(model, documents(2), {.contexts = {kContext}, .new_tokens = kNew});
  EXPECT_EQ(task.tokens(0), kContext + kNew);
  const std::vector<std::string> names = policies_for("retention");
  const auto settings =
      eval_settings(names, {kBudget, kContext + kNew}, {}, sizes_of(model), "retention");
  const ScratchFile scratch;
  RecordFile file = RecordFile::open(scratch.path(), Json::object());
  const RowTable rows = run_evaluation(task, settings, sizes_of(model), Json::object(), file);
  for (const EvictionConfig& setting : settings) {
    for (int64_t item = 0; item < task.items(); ++item) {
      const Json& row = *rows.find(task.keys(item).front(), setting);
      EXPECT_EQ(row["scored_tokens"], kContext - 1 - kContext / 2);
      EXPECT_LE(row["prefix"].get<int64_t>(), row["agreed"].get<int64_t>());
      if (setting.budget_entries == kBudget) {
        EXPECT_GT(row["kl_sum"].get<double>(), 1e-3) << setting.policy;
        EXPECT_GT(row["evicted_entries"].get<int64_t>(), 0) << setting.policy;
      } else {
        EXPECT_EQ(row["kl_sum"].get<double>(), 0.0) << setting.policy;
        EXPECT_EQ(row["agreed"], kNew) << setting.policy;
        EXPECT_EQ(row["prefix"], kNew) << setting.policy;
      }
    }
  }
}

// The prefix is how far the bounded engine, left to itself, writes what the full one writes.
TEST(Agreement, ThePrefixIsWhatServingWouldShare) {
  const EvalModel model = eval_model();
  const auto all = documents(4);
  AgreementTask task(model, all, {.contexts = {kContext}, .new_tokens = kNew});
  bool apart = false;
  for (int64_t item = 0; item < task.items(); ++item) {
    std::vector<int32_t> prompt = all[static_cast<std::size_t>(item)].tokens;
    prompt.resize(kContext);
    const EvictionConfig bounded{.policy = "streaming", .budget_entries = kBudget};
    const auto theirs = continuation(model, prompt, {.policy = "full"});
    const auto ours = continuation(model, prompt, bounded);
    ASSERT_EQ(theirs.size(), static_cast<std::size_t>(kNew));
    const auto shared = std::ranges::mismatch(theirs, ours).in1 - theirs.begin();
    EXPECT_EQ(task.run(item, bounded).front()["prefix"], shared);
    apart = apart || shared < kNew;
  }
  EXPECT_TRUE(apart) << "no continuation differs: the test shows nothing";
}

// Against the plain model whose attention is masked by hand.
TEST(Agreement, KlIsThatOfAPlainModelWithAMask) {
  const EvalModel model = eval_model();
  const auto all = documents(1);
  AgreementTask task(model, all, {.contexts = {kContext}, .new_tokens = 1});
  std::vector<int32_t> ids = all[0].tokens;
  ids.resize(kContext);
  // Chunks of 8 and a budget of 24: the first eviction that a prediction sees is behind position
  // 31, and leaves the positions 0..3 and 12..31.
  const Json row = task.run(0, {.policy = "streaming", .budget_entries = 24}).front();
  const at::Tensor p = masked_log_p(model, ids, kContext, 0, 0);
  const at::Tensor q = masked_log_p(model, ids, 32, 4, 12);
  const at::Tensor kl = (p.exp() * (p - q)).sum(1).narrow(0, 20, 19);
  EXPECT_NEAR(kl.narrow(0, 0, 12).abs().max().item<double>(), 0.0, 1e-6);
  EXPECT_GT(kl.sum().item<double>(), 1e-3);
  EXPECT_NEAR(row["kl_sum"].get<double>(), kl.sum().item<double>(), 1e-4);
}

TEST(Agreement, SumsUpOverDocuments) {
  const EvalModel model = eval_model();
  AgreementTask task(model, documents(3), {.contexts = {kContext}, .new_tokens = kNew, .seed = 3});
  const auto settings = eval_settings({"streaming"}, {kBudget}, {}, sizes_of(model), "retention");
  const ScratchFile scratch;
  RecordFile file = RecordFile::open(scratch.path(), Json::object());
  const RowTable rows = run_evaluation(task, settings, sizes_of(model), Json::object(), file);
  double kl = 0.0, agreed = 0.0, prefix = 0.0;
  for (int64_t item = 0; item < 3; ++item) {
    const Json& row = *rows.find(task.keys(item).front(), settings[1]);
    kl += row["kl_sum"].get<double>();
    agreed += row["agreed"].get<double>();
    prefix += row["prefix"].get<double>();
  }
  const Json summary = task.summarise(rows, settings);
  ASSERT_EQ(summary.size(), 2u);
  EXPECT_EQ(summary[0]["kl"], 0.0);
  EXPECT_EQ(summary[0]["agreement"], 1.0);
  EXPECT_EQ(summary[1]["documents"], 3);
  EXPECT_NEAR(summary[1]["kl"].get<double>(), kl / (3 * (kContext / 2 - 1)), 1e-12);
  EXPECT_NEAR(summary[1]["agreement"].get<double>(), agreed / (3 * kNew), 1e-12);
  EXPECT_NEAR(summary[1]["prefix"].get<double>(), prefix / 3, 1e-12);
  EXPECT_LE(summary[1]["kl_interval"][0].get<double>(), summary[1]["kl"].get<double>());
  EXPECT_NE(task.table(summary).find("streaming"), std::string::npos);
}

TEST(Agreement, RefusesWhatCannotBe) {
  const EvalModel model = eval_model();
  EXPECT_EQ(code_of([&] { AgreementTask(model, documents(1), {.contexts = {kRange}}); }),
            ErrorCode::kCapacity);
  EXPECT_EQ(code_of([&] {
              AgreementTask(model, documents(1), {.contexts = {kContext}, .new_tokens = 0});
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] {
              AgreementTask(model, documents(1), {.contexts = {kContext + 9}, .new_tokens = 4});
            }),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice
