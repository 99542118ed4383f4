#include "coppice/eval/talk.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/engine/engine_testing.h"
#include "coppice/eval/eval_testing.h"
#include "coppice/eval/evaluator.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kLong = 1400;

class TalkTest : public ::testing::Test {
 protected:
  TalkTest() : tokenizer(byte_tokenizer()), chat(kChatmlTemplate) {
    ModelArgs args = tiny_args();
    args.vocab_size = kByteVocab;
    args.max_position_embeddings = 2600;
    model.base.model = tiny_model(true, args);
    model.base.kv_dtype = at::kFloat;
    model.base.chunk_tokens = 64;
    model.tokenizer = &tokenizer;
    model.chat = &chat;
    model.end_token_ids = {kByteEnd};
    std::string text;
    for (int i = 0; i < 200; ++i) text += fmt::format("Sentence {} of a long story. ", i);
    passages = {text};
  }

  TalkTask task(const TalkOptions& options) const { return {model, passages, options}; }

  Tokenizer tokenizer;
  ChatTemplate chat;
  TextModel model;
  std::vector<std::string> passages;
};

TEST_F(TalkTest, FactsAreToldEarlyByTheUserAndEndWithTheAssistant) {
  TalkTask one = task({.lengths = {kLong}, .trials = 20, .questions = 2});
  for (int64_t number = 0; number < 10; ++number) {
    const Talk talk = one.make_talk(kLong, number);
    EXPECT_LE(talk.tokens, kLong);
    EXPECT_GT(talk.tokens, kLong - 300);
    const OrderedJson& turns = talk.reading.history;
    ASSERT_GE(turns.size(), 6u);
    EXPECT_EQ(static_cast<int64_t>(turns.size()), talk.turns);
    std::string told;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      EXPECT_EQ(turns[i]["role"], i % 2 == 0 ? "user" : "assistant");
      EXPECT_FALSE(turns[i]["content"].get<std::string>().empty());
      told += turns[i]["content"].get<std::string>() + " ";
    }
    // The text goes on from turn to turn.
    const auto begin = turns[0]["content"].get<std::string>().substr(9, 3);
    EXPECT_NE(told.find(fmt::format("Sentence {} of", (std::stoi(begin) + 3) % 200)),
              std::string::npos);
    ASSERT_EQ(talk.needles.size(), 2u);
    for (std::size_t q = 0; q < 2; ++q) {
      const Needle& needle = talk.needles[q];
      const auto turn = std::ranges::find_if(turns, [&](const OrderedJson& message) {
        return message["content"].get<std::string>().ends_with(needle.statement) ||
               message["content"].get<std::string>().find(needle.statement + " ") !=
                   std::string::npos;
      });
      ASSERT_NE(turn, turns.end()) << needle.statement;
      EXPECT_EQ((*turn)["role"], "user");
      const double place =
          static_cast<double>((turn - turns.begin()) / 2) / static_cast<double>(turns.size() / 2);
      EXPECT_DOUBLE_EQ(place, talk.depths[q]);
      EXPECT_LT(place, 0.25);
      for (const std::string& other : needle.distractors)
        EXPECT_NE(told.find(other), std::string::npos);
      EXPECT_EQ(told.find(needle.question), std::string::npos);
    }
  }
}

TEST_F(TalkTest, ATalkDependsOnItsNumberAndSeedAlone) {
  TalkTask one = task({.lengths = {900, kLong}, .trials = 4, .questions = 2}),
           other = task({.lengths = {kLong}, .questions = 2});
  EXPECT_EQ(one.make_talk(kLong, 1).reading.history, other.make_talk(kLong, 1).reading.history);
  EXPECT_NE(one.make_talk(kLong, 0).reading.history, one.make_talk(kLong, 1).reading.history);
  EXPECT_EQ(one.make_talk(900, 1).needles[0].statement,
            one.make_talk(kLong, 1).needles[0].statement);
  TalkTask seeded = task({.lengths = {kLong}, .questions = 2, .seed = 7});
  EXPECT_NE(one.make_talk(kLong, 1).reading.history, seeded.make_talk(kLong, 1).reading.history);
}

// Budgets that hold everything must equal the full cache: run_evaluation checks it.
TEST_F(TalkTest, EveryWayToAskGivesRowsAndSums) {
  TalkTask one = task({.lengths = {500},
                       .trials = 2,
                       .questions = 2,
                       .answer_tokens = 4,
                       .asking = {Asking::kUnseen, Asking::kSeen, Asking::kInTurn}});
  const CacheConfig sizes =
      cache_config(model.base.model->args(), at::kFloat, c10::Device(c10::kCPU));
  const auto settings = eval_settings({"streaming", "dbtrimkv"}, {32}, {}, sizes, "retention");
  const ScratchFile scratch;
  RecordFile file = RecordFile::open(scratch.path(), Json::object());
  const RowTable rows = run_evaluation(one, settings, sizes, Json::object(), file);
  for (const char* asked : {"unseen", "seen", "in-turn"}) {
    for (int64_t trial = 0; trial < 2; ++trial) {
      for (const EvictionConfig& setting : settings) {
        const Json* row = rows.find({{"length", 500}, {"asked", asked}, {"trial", trial}}, setting);
        ASSERT_NE(row, nullptr) << asked;
        EXPECT_LE(row->at("bytes_peak").get<int64_t>(), row->at("bytes_bound").get<int64_t>());
        if (setting.policy != "full") {
          EXPECT_EQ(row->at("kept_entries"), 32 * 6);
        }
      }
    }
    // What was announced was read besides.
    const Json key = {{"length", 500}, {"asked", asked}, {"trial", 0}};
    const auto prompt = rows.find(key, settings[0])->at("prompt_tokens").get<int64_t>();
    const Json plain = {{"length", 500}, {"asked", "unseen"}, {"trial", 0}};
    const auto unseen = rows.find(plain, settings[0])->at("prompt_tokens").get<int64_t>();
    if (std::string(asked) == "seen") {
      EXPECT_GT(prompt, unseen + 20);
    } else if (std::string(asked) == "in-turn") {
      EXPECT_EQ(prompt, unseen);
    }
  }
  const Json summary = one.summarise(rows, settings);
  EXPECT_EQ(summary.size(), 3 * settings.size());
  EXPECT_NE(one.table(summary).find("in-turn"), std::string::npos);
}

TEST_F(TalkTest, RefusesWhatCannotBe) {
  EXPECT_EQ(code_of([&] { task({.lengths = {2600}, .questions = 2}); }), ErrorCode::kCapacity);
  EXPECT_EQ(code_of([&] { task({.lengths = {10}, .questions = 2}); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { task({.lengths = {70}, .questions = 2}); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { task({.lengths = {900}, .questions = 9}); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { task({.lengths = {900}, .questions = 2, .asking = {}}); }),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice
