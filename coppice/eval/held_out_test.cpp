#include "coppice/eval/held_out.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "coppice/core/error.h"
#include "coppice/engine/engine_testing.h"
#include "coppice/eval/eval_testing.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/perplexity.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

EvalModel eval_model(bool gated = true) {
  return {.model = tiny_model(gated), .kv_dtype = at::kFloat, .chunk_tokens = 8};
}

CacheConfig sizes_of(const EvalModel& model) {
  return cache_config(model.model->args(), model.kv_dtype, c10::Device(c10::kCPU));
}

std::vector<EvalDocument> documents(const std::vector<int64_t>& lengths) {
  Rng rng(5);
  std::vector<EvalDocument> all;
  for (const int64_t length : lengths) {
    const auto number = static_cast<int64_t>(all.size());
    all.push_back({number, fmt::format("d{}", number), "test", random_prompt(rng, length)});
  }
  return all;
}

std::vector<int64_t> numbers(const HeldOutTask& task, int64_t context) {
  std::vector<int64_t> found;
  for (int64_t i = 0; i < task.items(); ++i) {
    const Json key = task.keys(i).front();
    if (key["context"] == context) found.push_back(key["document"]);
  }
  return found;
}

TEST(HeldOut, documents_are_those_long_enough_spread_evenly) {
  const EvalModel model = eval_model();
  const auto all = documents({50, 20, 50, 50, 90, 50, 50, 19, 50, 50});
  using Numbers = std::vector<int64_t>;
  const HeldOutTask every(model, all, {.contexts = {50, 90, 20, 50}});
  EXPECT_EQ(numbers(every, 50), (Numbers{0, 2, 3, 4, 5, 6, 8, 9}));
  EXPECT_EQ(numbers(every, 90), (Numbers{4}));
  EXPECT_EQ(numbers(every, 20).size(), 9u);
  EXPECT_EQ(every.keys(0).front()["context"], 20);
  EXPECT_EQ(every.keys(1).front()["context"], 50);
  const HeldOutTask two(model, all, {.contexts = {50}, .documents = 2});
  EXPECT_EQ(numbers(two, 50), (Numbers{3, 8}));
  const HeldOutTask more(model, all, {.contexts = {90}, .documents = 5});
  EXPECT_EQ(numbers(more, 90), (Numbers{4}));
  EXPECT_EQ(code_of([&] { HeldOutTask(model, all, {.contexts = {91}}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { HeldOutTask(model, all, {.contexts = {3}}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { HeldOutTask(model, all, {.contexts = {kRange + 1}}); }),
            ErrorCode::kCapacity);
}

// Every policy: a row is what the protocol gives, and the summary is its rows'.
TEST(HeldOut, K15_rows_and_summary_agree_with_perplexity) {
  const EvalModel model = eval_model();
  const auto all = documents({60, 80, 70});
  HeldOutTask task(model, all, {.contexts = {60}, .seed = 4});
  const std::vector<std::string> names = policies_for("retention");
  const std::vector<EvictionConfig> settings =
      eval_settings(names, {12, 60}, {}, sizes_of(model), "retention");
  const ScratchFile scratch;
  RecordFile file = RecordFile::open(scratch.path(), Json::object());
  // That a budget of 60 equals the full cache is checked in here.
  const RowTable rows = run_evaluation(task, settings, sizes_of(model), Json::object(), file);
  const Json summary = task.summarise(rows, settings);
  ASSERT_EQ(summary.size(), settings.size());
  double full_nll = 0.0;
  for (std::size_t s = 0; s < settings.size(); ++s) {
    double nll = 0.0;
    for (int64_t d = 0; d < 3; ++d) {
      PerplexityOptions options{.context_tokens = 60, .eviction = settings[s], .chunk_tokens = 8};
      const PerplexityResult direct =
          evaluate_perplexity(*model.model, all[static_cast<std::size_t>(d)].tokens, options);
      const Json* row = rows.find({{"document", d}, {"context", 60}}, settings[s]);
      ASSERT_NE(row, nullptr);
      EXPECT_EQ(row->at("scored_tokens"), 29);
      EXPECT_EQ(row->at("nll").get<double>(), direct.mean_nll * 29);
      EXPECT_EQ(row->at("kept_entries"), direct.kept_entries);
      EXPECT_LE(row->at("bytes_peak").get<int64_t>(), row->at("bytes_bound").get<int64_t>());
      nll += direct.mean_nll * 29;
    }
    if (s == 0) full_nll = nll;
    const Json& group = summary[s];
    EXPECT_EQ(group["policy"], settings[s].policy);
    EXPECT_EQ(group["documents"], 3);
    EXPECT_NEAR(group["ratio"].get<double>(), std::exp((nll - full_nll) / 87), 1e-9);
    EXPECT_NEAR(group["perplexity"].get<double>(), std::exp(nll / 87), 1e-6);
    const double ratio = group["ratio"];
    EXPECT_LE(group["ratio_interval"][0].get<double>(), ratio);
    EXPECT_GE(group["ratio_interval"][1].get<double>(), ratio);
    const bool holds_all = s == 0 || settings[s].budget_entries == 60;
    EXPECT_EQ(ratio == 1.0, holds_all) << settings[s].policy;
  }
  const std::string table = task.table(summary);
  EXPECT_NE(table.find("dbtrimkv"), std::string::npos);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'),
            static_cast<int64_t>(settings.size()) + 1);
}

TEST(HeldOut, one_document_has_no_interval) {
  const EvalModel model = eval_model();
  HeldOutTask task(model, documents({40}), {.contexts = {40}});
  const auto settings = eval_settings({"streaming"}, {8}, {}, sizes_of(model), "retention");
  const ScratchFile scratch;
  RecordFile file = RecordFile::open(scratch.path(), Json::object());
  const RowTable rows = run_evaluation(task, settings, sizes_of(model), Json::object(), file);
  const Json summary = task.summarise(rows, settings);
  EXPECT_TRUE(summary[1]["ratio_interval"].is_null());
  EXPECT_NE(task.table(summary).find("streaming"), std::string::npos);
}

}  // namespace
}  // namespace coppice
