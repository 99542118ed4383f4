#include "coppice/eval/recall.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "coppice/core/error.h"
#include "coppice/engine/engine_testing.h"
#include "coppice/eval/eval_testing.h"
#include "coppice/eval/evaluator.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kLong = 1400;

class RecallTest : public ::testing::Test {
 protected:
  RecallTest()
      : tokenizer(byte_tokenizer()),
        chat(kChatmlTemplate),
        model(byte_text_model(tokenizer, chat, 2000)) {
    model.base.kv_dtype = at::kFloat;
    std::string text;
    for (int i = 0; i < 200; ++i) text += fmt::format("Sentence {} of a long story. ", i);
    passages = {text};
  }

  RecallTask task(const RecallOptions& options) const { return {model, passages, options}; }
  std::string text_of(const std::vector<int32_t>& ids) const { return tokenizer.decode(ids); }

  Tokenizer tokenizer;
  ChatTemplate chat;
  TextModel model;
  std::vector<std::string> passages;
};

TEST_F(RecallTest, a_text_is_one_message_that_ends_with_the_question) {
  RecallTask one = task({.lengths = {kLong}, .trials = 10});
  for (int64_t i = 0; i < 10; ++i) {
    const RecallText text = one.make_text(kLong, i);
    ASSERT_EQ(text.questions.size(), 1u);
    const RecallText::Question& question = text.questions.front();
    EXPECT_LE(text.tokens.size(), static_cast<std::size_t>(kLong));
    EXPECT_GT(text.tokens.size(), static_cast<std::size_t>(kLong - 60));
    const std::string read = text_of(text.tokens), asked = text_of(question.tokens);
    EXPECT_TRUE(read.ends_with(text.reading.passage));
    EXPECT_TRUE(read.starts_with("<|im_start|>"));
    EXPECT_NE(text.reading.passage.find(question.needle.statement), std::string::npos);
    EXPECT_EQ(read.find(question.needle.question), std::string::npos);  // unseen
    EXPECT_NE(asked.find(question.needle.question), std::string::npos);
    EXPECT_TRUE(asked.ends_with("<|im_end|>\n<|im_start|>assistant\n"));
    for (const std::string& other : question.needle.distractors)
      EXPECT_NE(text.reading.passage.find(other), std::string::npos);
    // Where it stands is what is told.
    const double share = static_cast<double>(text.reading.passage.find(question.needle.statement)) /
                         static_cast<double>(text.reading.passage.size());
    EXPECT_NEAR(share, question.depth, 0.15);
  }
}

TEST_F(RecallTest, every_kind_meets_every_depth_once_in_a_round) {
  const auto kinds = static_cast<int64_t>(needle_kinds().size());
  RecallTask one = task({.lengths = {kLong}, .trials = 10 * kinds});
  std::map<std::pair<std::string, int64_t>, int> met;
  for (int64_t i = 0; i < 10 * kinds; ++i) {
    const RecallText::Question question = one.make_text(kLong, i).questions.front();
    // Facts stand at the first sentence behind their depth, at most 30 tokens on.
    ++met[{question.needle.kind, static_cast<int64_t>((question.depth - 0.01) * 10)}];
  }
  EXPECT_EQ(met.size(), static_cast<std::size_t>(10 * kinds));
}

TEST_F(RecallTest, a_text_depends_on_seed_length_and_number_alone) {
  RecallTask few = task({.lengths = {900}, .trials = 2, .seed = 6});
  RecallTask many = task({.lengths = {kLong, 900}, .trials = 30, .answer_tokens = 3, .seed = 6});
  RecallTask other = task({.lengths = {900}, .trials = 2, .seed = 7});
  many.make_text(kLong, 7);
  const RecallText text = few.make_text(900, 1), again = many.make_text(900, 1);
  EXPECT_EQ(text.tokens, again.tokens);
  EXPECT_EQ(text.questions[0].tokens, again.questions[0].tokens);
  EXPECT_NE(text.tokens, other.make_text(900, 1).tokens);
  EXPECT_NE(text.tokens, few.make_text(900, 0).tokens);
  // A longer text has the same fact and begins in the same place.
  const RecallText longer = many.make_text(kLong, 1);
  EXPECT_EQ(longer.questions[0].needle.statement, text.questions[0].needle.statement);
  EXPECT_EQ(longer.reading.passage.substr(0, 20), text.reading.passage.substr(0, 20));
}

TEST_F(RecallTest, several_questions_stand_in_one_text) {
  RecallTask four = task({.lengths = {kLong}, .trials = 8, .questions = 4});
  EXPECT_EQ(four.items(), 2);
  EXPECT_EQ(four.keys(1).front()["trial"], 4);
  EXPECT_EQ(four.keys(1).back()["trial"], 7);
  const RecallText text = four.make_text(kLong, 1);
  ASSERT_EQ(text.questions.size(), 4u);
  for (std::size_t q = 0; q < 4; ++q) {
    EXPECT_EQ(text.questions[q].needle.kind, needle_kinds()[4 + q]);
    EXPECT_NE(text.reading.passage.find(text.questions[q].needle.statement), std::string::npos);
  }
}

TEST_F(RecallTest, K15_rows_tell_all_and_a_budget_that_holds_all_changes_no_answer) {
  RecallTask two = task({.lengths = {600, 1000}, .trials = 4, .questions = 2, .answer_tokens = 6});
  const CacheConfig sizes =
      cache_config(model.base.model->args(), at::kFloat, c10::Device(c10::kCPU));
  const auto settings =
      eval_settings({"dbtrimkv", "streaming"}, {24, 2000}, {}, sizes, "retention");
  const ScratchFile scratch;
  RecordFile file = RecordFile::open(scratch.path(), Json::object());
  const RowTable rows = run_evaluation(two, settings, sizes, Json::object(), file);
  EXPECT_EQ(file.rows().size(), 2u * 4 * 5);
  const int64_t cached = sizes.num_layers * sizes.num_kv_heads;
  for (const Json& row : file.rows()) {
    EXPECT_EQ(row["correct"], row["answer"].get<std::string>().find(
                                  row["expected"].get<std::string>()) != std::string::npos);
    EXPECT_LE(row["tokens"], row["length"]);
    EXPECT_LE(row["bytes_peak"], row["bytes_bound"]);
    if (row["budget"] == 24) {
      EXPECT_EQ(row["kept_entries"], 24 * cached);
    }
  }
  const Json summary = two.summarise(rows, settings);
  ASSERT_EQ(summary.size(), 3u * settings.size());  // two lengths, and all
  EXPECT_EQ(summary.back()["trials"], 8);
  EXPECT_EQ(summary.back()["texts"], 2);
  EXPECT_NE(two.table(summary).find("all"), std::string::npos);
}

// A fork asked beside others answers as if it were asked alone.
TEST_F(RecallTest, questions_of_one_text_do_not_see_each_other) {
  RecallTask two = task({.lengths = {800}, .trials = 2, .questions = 2, .answer_tokens = 8});
  const EvictionConfig eviction{.policy = "streaming", .budget_entries = 300};
  const std::vector<Json> rows = two.run(0, eviction);
  const RecallText text = two.make_text(800, 0);
  EngineConfig config;
  config.eviction = eviction;
  config.chunk_tokens = 64;
  config.max_blocks = 4000;
  config.end_token_ids = {kByteEnd};
  for (std::size_t q = 0; q < 2; ++q) {
    Engine engine(model.base.model, config, text_streams(tokenizer));
    Request read = greedy_request(text.tokens, 0);
    read.keep_session = true;
    Request ask = greedy_request(text.questions[q].tokens, 8);
    ask.session = engine.run(read).session;
    EXPECT_EQ(engine.run(ask).text, rows[q]["answer"].get<std::string>());
  }
}

// The same texts, asked in each way: their rows have names of their own, and a budget that holds
// all is the full cache in each.
TEST_F(RecallTest, K15_each_way_to_ask_is_a_column_of_its_own) {
  RecallTask all = task({.lengths = {700},
                         .trials = 2,
                         .questions = 2,
                         .answer_tokens = 5,
                         .asking = {Asking::kUnseen, Asking::kSeen, Asking::kInTurn}});
  ASSERT_EQ(all.items(), 3);
  const CacheConfig sizes =
      cache_config(model.base.model->args(), at::kFloat, c10::Device(c10::kCPU));
  const auto settings = eval_settings({"streaming"}, {32}, {}, sizes, "retention");
  const ScratchFile scratch;
  RecordFile file = RecordFile::open(scratch.path(), Json::object());
  const RowTable rows = run_evaluation(all, settings, sizes, Json::object(), file);
  EXPECT_EQ(file.rows().size(), 3u * 2 * 2 + 2);
  const Json summary = all.summarise(rows, settings);
  ASSERT_EQ(summary.size(), 3u * 2);
  EXPECT_EQ(summary[0]["asked"], "unseen");
  EXPECT_EQ(summary[2]["asked"], "seen");
  EXPECT_EQ(summary[4]["asked"], "in-turn");
  const auto prompt_tokens = [&](const char* asked, int64_t trial) {
    const Json* row = rows.find({{"length", 700}, {"asked", asked}, {"trial", trial}}, settings[0]);
    return row->at("prompt_tokens").get<int64_t>();
  };
  EXPECT_GT(prompt_tokens("seen", 0), prompt_tokens("unseen", 0));
  EXPECT_EQ(prompt_tokens("in-turn", 0), prompt_tokens("unseen", 0));
  EXPECT_GT(prompt_tokens("in-turn", 1), prompt_tokens("unseen", 1));
}

TEST_F(RecallTest, bad_options_are_refused) {
  const auto code = [&](const RecallOptions& options) { return code_of([&] { task(options); }); };
  EXPECT_EQ(code({.lengths = {}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.lengths = {20}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.lengths = {64}}), ErrorCode::kInvalidArgument);  // no room for real text
  EXPECT_EQ(code({.lengths = {900}, .trials = 0}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.lengths = {900}, .questions = 9}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.lengths = {900}, .answer_tokens = 0}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.lengths = {1900}}), ErrorCode::kCapacity);
  passages = {"Too short. "};
  EXPECT_EQ(code({.lengths = {900}}), ErrorCode::kInvalidArgument);
  passages = {" \n"};
  EXPECT_EQ(code({.lengths = {900}}), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice
