#include "coppice/eval/evaluator.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "coppice/eval/eval_testing.h"

namespace coppice {
namespace {

using testing::ScratchFile;

const CacheConfig kSizes = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 4};

// Items of 10, 20 and 30 tokens with two rows each; loses what the budget does not hold.
class FakeTask final : public EvalTask {
 public:
  std::string_view name() const override { return "fake"; }
  Json config() const override { return Json::object(); }
  int64_t items() const override { return 3; }
  std::vector<Json> keys(int64_t item) const override {
    return {Json{{"item", item}, {"part", "a"}}, Json{{"item", item}, {"part", "b"}}};
  }
  int64_t tokens(int64_t item) const override { return 10 * (item + 1); }
  std::vector<Json> run(int64_t item, const EvictionConfig& eviction) override {
    if (runs_left-- == 0) throw std::runtime_error("killed");
    ++runs;
    const int64_t lost = std::max<int64_t>(0, tokens(item) - eviction.budget_entries);
    const double extra = eviction.policy == liar ? 0.5 : 0.0;
    return {Json{{"nll", static_cast<double>(lost) + extra}}, Json{{"nll", 7.0}}};
  }
  std::vector<std::string> outcome() const override { return {"nll"}; }
  Json summarise(const RowTable&, const std::vector<EvictionConfig>&) const override {
    return Json::array();
  }
  std::string table(const Json&) const override { return {}; }

  int runs = 0;
  int runs_left = -1;
  std::string liar;
};

std::vector<EvictionConfig> settings(const std::vector<int64_t>& budgets = {4, 8}) {
  EvictionConfig base;
  base.sinks = 1;
  return eval_settings({"streaming", "full", "knorm", "streaming"}, budgets, base, kSizes, "");
}

std::string content(const std::string& path) {
  std::ifstream in(path);
  std::string line, all;
  while (std::getline(in, line)) {
    Json row = Json::parse(line);
    row.erase("seconds");
    all += row.dump() + "\n";
  }
  return all;
}

TEST(Evaluator, settings_start_with_the_full_cache_and_repeat_nothing) {
  const std::vector<EvictionConfig> all = settings({8, 4, 8});
  std::vector<std::string> names;
  for (const EvictionConfig& one : all) names.push_back(dump_json(setting_key(one)));
  EXPECT_EQ(names, (std::vector<std::string>{R"({"budget":null,"policy":"full"})",
                                             R"({"budget":8,"policy":"streaming:sinks=1"})",
                                             R"({"budget":4,"policy":"streaming:sinks=1"})",
                                             R"({"budget":8,"policy":"knorm:sinks=1"})",
                                             R"({"budget":4,"policy":"knorm:sinks=1"})"}));
  EXPECT_THROW(eval_settings({"lru"}, {8}, {}, kSizes, "retention"), Error);
  EXPECT_THROW(eval_settings({"dbtrimkv"}, {8}, {}, kSizes, ""), Error);
  EXPECT_EQ(eval_settings({"dbtrimkv"}, {8}, {}, kSizes, "retention").size(), 2u);
  EXPECT_THROW(eval_settings({"streaming"}, {0}, {}, kSizes, "retention"), Error);
}

TEST(Evaluator, a_policy_takes_its_own_kind_of_gate) {
  for (const char* kind : {"kvzap", "fastkvzip"}) {
    EXPECT_EQ(eval_settings({kind}, {8}, {}, kSizes, kind).size(), 2u);
    EXPECT_THROW(eval_settings({kind}, {8}, {}, kSizes, "retention"), Error);
    EXPECT_THROW(eval_settings({"dbtrimkv"}, {8}, {}, kSizes, kind), Error);
  }
}

TEST(Evaluator, rows_stand_for_themselves) {
  const ScratchFile scratch;
  const Json config = {{"model", "m"}, {"seed", 3}};
  RecordFile file = RecordFile::open(scratch.path(), config);
  FakeTask task;
  EvalProgress last;
  const RowTable rows =
      run_evaluation(task, settings(), kSizes, config, file, [&](const EvalProgress& at) {
        EXPECT_GT(at.rows, last.rows);
        EXPECT_GT(at.tokens, last.tokens);
        last = at;
      });
  // Five settings, and a budget of 10 for both policies of the shortest item; two rows each.
  EXPECT_EQ(file.rows().size(), 2u * (3 * 5 + 2));
  EXPECT_EQ(last.rows, last.rows_in_all);
  EXPECT_EQ(last.tokens, last.tokens_in_all);
  EXPECT_EQ(last.rows, static_cast<int64_t>(file.rows().size()));
  const Json* row = rows.find({{"item", 1}, {"part", "a"}}, settings()[1]);
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->at("nll"), 16.0);
  EXPECT_EQ(row->at("model"), "m");
  EXPECT_EQ(row->at("policy"), "streaming:sinks=1");
  EXPECT_EQ(row->at("budget"), 4);
  EXPECT_EQ(row->at("options"),
            (Json{{"scope", "head"}, {"sinks", 1}, {"recent", 0}, {"floor", 0}}));
  EXPECT_EQ(row->at("budget_bytes"), 4 * kSizes.num_rows() * kSizes.entry_bytes());
  EXPECT_TRUE(row->contains("seconds"));
  EvictionConfig roomy = settings()[1];
  roomy.budget_entries = 10;
  EXPECT_NE(rows.find({{"item", 0}, {"part", "b"}}, roomy), nullptr);
  EXPECT_EQ(rows.find({{"item", 1}, {"part", "b"}}, roomy), nullptr);
}

TEST(Evaluator, E03_one_policy_may_stand_there_with_several_settings) {
  const auto all = eval_settings({"streaming", "streaming:sinks=0", "streaming:sinks=0"}, {4, 8},
                                 {}, kSizes, "");
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(setting_key(all[3])["policy"], "streaming:sinks=0");
  EXPECT_EQ(setting_details(all[1], kSizes)["options"]["sinks"], 4);
  EXPECT_EQ(setting_details(all[3], kSizes)["options"]["sinks"], 0);
  EXPECT_EQ(setting_details(all[1], kSizes)["budget_bytes"],
            setting_details(all[3], kSizes)["budget_bytes"]);
  const ScratchFile scratch;
  RecordFile file = RecordFile::open(scratch.path(), Json::object());
  FakeTask task;
  run_evaluation(task, all, kSizes, Json::object(), file);
  // Of the shortest item both settings have a row with a budget that holds all of it.
  EXPECT_EQ(file.rows().size(), 2u * (3 * 5 + 2));
}

// Killed after any number of runs, torn in the last line: going on ends in the very same file.
TEST(Evaluator, an_evaluation_goes_on_where_it_was_killed) {
  const Json config = {{"model", "m"}};
  std::string whole;
  int runs_in_all = 0;
  for (int killed_after = -1; killed_after < 17; ++killed_after) {
    const ScratchFile scratch;
    FakeTask first;
    first.runs_left = killed_after;
    if (killed_after >= 0) {
      {
        RecordFile file = RecordFile::open(scratch.path(), config);
        EXPECT_THROW(run_evaluation(first, settings(), kSizes, config, file), std::runtime_error);
      }
      // The kill took half of the last line, so one row of a pair is lacking.
      const auto size = std::filesystem::file_size(scratch.path());
      if (killed_after > 0) std::filesystem::resize_file(scratch.path(), size - 9);
    }
    FakeTask second;
    RecordFile file = RecordFile::open(scratch.path(), config);
    run_evaluation(second, settings(), kSizes, config, file);
    if (killed_after < 0) {
      whole = content(scratch.path());
      runs_in_all = second.runs;
    } else {
      EXPECT_EQ(second.runs, runs_in_all - std::max(0, killed_after - 1)) << killed_after;
      EXPECT_EQ(content(scratch.path()), whole) << killed_after;
    }
  }
}

TEST(Evaluator, a_grid_may_grow) {
  const ScratchFile scratch;
  const Json config = {{"model", "m"}};
  FakeTask task;
  {
    RecordFile file = RecordFile::open(scratch.path(), config);
    run_evaluation(task, settings({4}), kSizes, config, file);
  }
  const int before = task.runs;
  RecordFile file = RecordFile::open(scratch.path(), config);
  run_evaluation(task, settings({4, 6}), kSizes, config, file);
  EXPECT_EQ(task.runs - before, 3 * 2);
}

TEST(Evaluator, K15_a_budget_that_holds_all_must_equal_the_full_cache) {
  const Json config = {{"model", "m"}};
  for (const bool from_file : {false, true}) {
    const ScratchFile scratch;
    RecordFile file = RecordFile::open(scratch.path(), config);
    FakeTask task;
    if (!from_file) {
      task.liar = "knorm";
    } else {
      run_evaluation(task, settings({4}), kSizes, config, file);
      Json lie = file.rows().front();
      lie["policy"] = "knorm:sinks=1";
      lie["budget"] = 25;  // holds items 0 and 1
      lie["nll"] = 0.25;
      for (const char* part : {"a", "b"}) {
        lie["item"] = 1;
        lie["part"] = part;
        file.append(lie);
      }
    }
    try {
      run_evaluation(task, settings({4, 25}), kSizes, config, file);
      ADD_FAILURE() << "no error was thrown";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("knorm"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("nll"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace coppice
