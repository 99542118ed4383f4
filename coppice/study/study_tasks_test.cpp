// The two tasks of a study: what is kept, and what it costs.
#include <gtest/gtest.h>

#include <numeric>

#include "coppice/core/error.h"
#include "coppice/engine/engine_testing.h"
#include "coppice/eval/eval_testing.h"
#include "coppice/eval/evaluator.h"
#include "coppice/study/cost_task.h"
#include "coppice/study/kept_task.h"
#include "coppice/study/plots.h"
#include "coppice/study/token_kinds.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kContext = 48, kBudget = 10, kRows = 6;

EvalModel byte_model() {
  ModelArgs args = tiny_args();
  args.vocab_size = kByteVocab;
  return {.model = tiny_model(true, args), .kv_dtype = at::kFloat, .chunk_tokens = 8};
}

CacheConfig sizes_of(const EvalModel& model) {
  return cache_config(model.model->args(), model.kv_dtype, c10::Device(c10::kCPU));
}

std::vector<EvalDocument> documents(const Tokenizer& tokenizer) {
  const std::string text =
      "The hen of 1817, Emma said,\n\nlaid eggs; the heron and the fox did not.";
  std::vector<int32_t> ids = tokenizer.encode(text, {.parse_special = false});
  return {{0, "a", "test", ids}, {1, "b", "test", {ids.begin() + 3, ids.end()}}};
}

int64_t sum(const Json& list) {
  int64_t all = 0;
  for (const Json& value : list) all += value.is_array() ? sum(value) : value.get<int64_t>();
  return all;
}

TEST(KeptTask, CountsEveryEntryOnceUnderEveryPolicy) {
  const EvalModel model = byte_model();
  const Tokenizer tokenizer = byte_tokenizer();
  KeptTask task(model, tokenizer, documents(tokenizer), {.context = kContext});
  const std::vector<std::string> names = policies_for("retention");
  const auto settings = eval_settings(names, {kBudget}, {}, sizes_of(model), "retention");
  const ScratchFile scratch;
  RecordFile file = RecordFile::open(scratch.path(), Json::object());
  const RowTable rows = run_evaluation(task, settings, sizes_of(model), Json::object(), file);
  const Json summary = task.summarise(rows, settings);
  ASSERT_EQ(summary.size(), settings.size());
  for (const Json& setting : summary) {
    const bool full = setting["budget"].is_null();
    EXPECT_EQ(setting["documents"], 2);
    EXPECT_EQ(sum(setting["seen_kinds"]), 2 * kContext);
    EXPECT_EQ(sum(setting["kept"]), 2 * kRows * (full ? kContext : kBudget)) << setting["policy"];
    ASSERT_EQ(setting["kept_kinds"].size(), static_cast<std::size_t>(kRows));
    for (std::size_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(sum(setting["kept_kinds"][row]), setting["kept"][row].get<int64_t>());
      if (full) {
        EXPECT_EQ(setting["kept_kinds"][row], setting["seen_kinds"]);
      }
    }
    for (std::size_t kind = 0; full && kind < kTokenKinds; ++kind)
      EXPECT_EQ(kind_lean(setting, kind), 0.0);
  }
  EXPECT_NE(task.table(summary).find("dbtrimkv"), std::string::npos);
  EXPECT_EQ(code_of([&] { KeptTask(model, tokenizer, documents(tokenizer), {.context = 1000}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { KeptTask(model, tokenizer, {}, {.context = 8}); }),
            ErrorCode::kInvalidArgument);
}

TEST(CostTask, GivesMediansOfRatesAndTheBytesThatWereHeld) {
  const EvalModel model = byte_model();
  Rng rng(3);
  CostTask task(model, random_prompt(rng, kContext), {.new_tokens = 6, .repeats = 3});
  EXPECT_EQ(task.tokens(0), kContext + 6);
  const auto settings = eval_settings({"streaming"}, {kBudget}, {}, sizes_of(model), "retention");
  const ScratchFile scratch;
  RecordFile file = RecordFile::open(scratch.path(), Json::object());
  const RowTable rows = run_evaluation(task, settings, sizes_of(model), Json::object(), file);
  const Json summary = task.summarise(rows, settings);
  ASSERT_EQ(summary.size(), 2u);
  for (const Json& row : summary) {
    EXPECT_EQ(row["repeats"], 3);
    EXPECT_GT(row["prefill_tokens_per_s"].get<double>(), 0.0);
    EXPECT_GT(row["decode_tokens_per_s"].get<double>(), 0.0);
    EXPECT_LE(row["bytes_peak"].get<double>(), row["bytes_bound"].get<double>());
  }
  EXPECT_LT(summary[1]["bytes_peak"].get<double>(), summary[0]["bytes_peak"].get<double>());
  EXPECT_EQ(summary[1]["kept_entries"].get<double>(), kBudget * kRows);
  EXPECT_NE(task.table(summary).find("streaming"), std::string::npos);
  EXPECT_EQ(code_of([&] { CostTask(model, {}, {}); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { CostTask(model, {1}, {.new_tokens = 1}); }), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice
