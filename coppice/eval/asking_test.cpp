#include "coppice/eval/asking.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "coppice/core/error.h"
#include "coppice/engine/engine_testing.h"
#include "coppice/eval/eval_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

class AskingTest : public ::testing::Test {
 protected:
  AskingTest()
      : tokenizer(byte_tokenizer()),
        chat(kChatmlTemplate),
        model(byte_text_model(tokenizer, chat, 1500)) {
    reading.passage = "A long story. The cat is called Tom. The end. ";
    for (int i = 0; i < 6; ++i) reading.passage += "And so on, and so on, until the evening. ";
    reading.separator = "\n\nQuestion: ";
    reading.questions = {{.text = "What is the cat called?", .opening = "The cat"},
                         {.text = "Who is Tom?", .opening = ""}};
  }

  std::string text_of(const std::vector<int32_t>& ids) const { return tokenizer.decode(ids); }
  // What a whole prompt is answered with, read in one go.
  std::string answer_to(const std::string& prompt, const EvictionConfig& eviction, int64_t tokens) {
    EngineConfig config;
    config.eviction = eviction;
    config.chunk_tokens = 64;
    config.max_blocks = 4000;
    config.end_token_ids = {kByteEnd};
    Engine engine(model.base.model, config, text_streams(tokenizer));
    return engine.run(greedy_request(tokenizer.encode(prompt), tokens)).text;
  }

  Tokenizer tokenizer;
  ChatTemplate chat;
  TextModel model;
  Reading reading;
};

constexpr const char* kUser = "<|im_start|>user\n";
constexpr const char* kAssistant = "<|im_end|>\n<|im_start|>assistant\n";

TEST_F(AskingTest, prompts_are_cut_where_eviction_comes) {
  const auto unseen = asked_prompts(model, reading, Asking::kUnseen);
  ASSERT_EQ(unseen.size(), 2u);
  EXPECT_EQ(text_of(unseen[0].before), kUser + reading.passage);
  EXPECT_EQ(text_of(unseen[0].before), unseen[0].read_text);
  EXPECT_EQ(unseen[1].before, unseen[0].before);
  EXPECT_EQ(text_of(unseen[0].after),
            std::string("\n\nQuestion: What is the cat called?") + kAssistant + "The cat");
  EXPECT_EQ(text_of(unseen[1].after), std::string("\n\nQuestion: Who is Tom?") + kAssistant);

  const auto seen = asked_prompts(model, reading, Asking::kSeen);
  EXPECT_TRUE(seen[1].before.empty());
  EXPECT_EQ(text_of(seen[1].after), std::string(kUser) + "Question: Who is Tom?\n\n" +
                                        reading.passage + "\n\nQuestion: Who is Tom?" + kAssistant);
  EXPECT_EQ(seen[1].tokens(), static_cast<int64_t>(seen[1].after.size()));
}

TEST_F(AskingTest, a_history_is_read_before_the_question) {
  reading.history = {{{"role", "user"}, {"content", "Hello."}},
                     {{"role", "assistant"}, {"content", "Hi!"}}};
  reading.passage.clear();
  reading.separator.clear();
  const auto asked = asked_prompts(model, reading, Asking::kUnseen);
  EXPECT_EQ(text_of(asked[0].before),
            std::string(kUser) + "Hello." + kAssistant + "Hi!<|im_end|>\n<|im_start|>user\n");
  EXPECT_EQ(text_of(asked[1].after), std::string("Who is Tom?") + kAssistant);
}

TEST_F(AskingTest, control_tokens_in_a_text_stay_text) {
  reading.passage = "Before <|im_end|> behind. ";
  reading.questions[0].opening = "<|im_start|>";
  for (const Asking asking : {Asking::kUnseen, Asking::kSeen}) {
    const AskedPrompt one = asked_prompts(model, reading, asking).front();
    std::vector<int32_t> all = one.before;
    all.insert(all.end(), one.after.begin(), one.after.end());
    EXPECT_EQ(std::ranges::count(all, kByteEnd), 1);  // the template's own
  }
}

// With the full cache every way is one prompt read at once.
TEST_F(AskingTest, answers_are_those_of_whole_prompts) {
  const auto full = [&](Asking asking) {
    return ask_questions(model, reading,
                         {.asking = asking,
                          .eviction = {.policy = "full"},
                          .answer_tokens = 12,
                          .total_tokens = 1200});
  };
  for (const Asking asking : {Asking::kUnseen, Asking::kSeen}) {
    const std::vector<Answer> answers = full(asking);
    for (std::size_t q = 0; q < 2; ++q) {
      const AskedPrompt asked = asked_prompts(model, reading, asking)[q];
      const std::string prompt = text_of(asked.before) + text_of(asked.after);
      EXPECT_EQ(answers[q].text, answer_to(prompt, {.policy = "full"}, 12));
      EXPECT_EQ(answers[q].prompt_tokens, asked.tokens());
      EXPECT_EQ(answers[q].kv.evicted_entries, 0);
    }
  }
  const std::vector<Answer> answers = full(Asking::kInTurn);
  EXPECT_EQ(answers[0].text, full(Asking::kUnseen)[0].text);
  EXPECT_GT(answers[1].prompt_tokens, full(Asking::kUnseen)[1].prompt_tokens + 12);
}

// The second question follows the first one's answer, whose tokens are in the cache as drawn.
TEST_F(AskingTest, questions_in_turn_are_one_conversation) {
  const EvictionConfig eviction{.policy = "streaming", .budget_entries = 60};
  const std::vector<Answer> answers = ask_questions(
      model, reading,
      {.asking = Asking::kInTurn, .eviction = eviction, .answer_tokens = 9, .total_tokens = 1200});
  EngineConfig config;
  config.eviction = eviction;
  config.chunk_tokens = 64;
  config.max_blocks = 4000;
  config.end_token_ids = {kByteEnd};
  Engine engine(model.base.model, config, text_streams(tokenizer));
  const AskedPrompt first = asked_prompts(model, reading, Asking::kInTurn).front();
  Request read = greedy_request(first.before, 0);
  read.keep_session = true;
  Request ask = greedy_request(first.after, 9);
  ask.session = engine.run(read).session;
  ask.keep_session = true;
  const RequestOutput one = engine.run(ask);
  EXPECT_EQ(one.text, answers[0].text);
  const bool ended = one.finish_reason == FinishReason::kStop;
  EXPECT_EQ(answers[0].ended, ended);
  const std::string next =
      std::string(ended ? "" : "<|im_end|>") + "\n" + kUser + "Question: Who is Tom?" + kAssistant;
  Request again = greedy_request(tokenizer.encode(next), 9);
  again.session = one.session;
  const RequestOutput two = engine.run(again);
  EXPECT_EQ(two.text, answers[1].text);
  EXPECT_EQ(two.usage.tokens.prompt, answers[1].prompt_tokens);
  EXPECT_GT(answers[1].kv.evicted_entries, answers[0].kv.evicted_entries);
}

TEST_F(AskingTest, templates_that_rewrite_a_message_are_refused) {
  const ChatTemplate upper("{% for m in messages %}{{ m.content | upper }}{% endfor %}");
  model.chat = &upper;
  EXPECT_THROW(asked_prompts(model, reading, Asking::kUnseen), Error);
  // Writes only the last message, so a second turn does not continue the first.
  const ChatTemplate last("{{ messages[-1].content }}!");
  model.chat = &last;
  EXPECT_EQ(asked_prompts(model, reading, Asking::kUnseen).size(), 2u);
  EXPECT_THROW(ask_questions(model, reading,
                             {.asking = Asking::kInTurn,
                              .eviction = {.policy = "full"},
                              .answer_tokens = 3,
                              .total_tokens = 1200}),
               Error);
}

TEST(Asking, names) {
  EXPECT_EQ(parse_asking({"both"}), (std::vector{Asking::kUnseen, Asking::kSeen}));
  EXPECT_EQ(parse_asking({"in-turn", "unseen", "unseen"}),
            (std::vector{Asking::kUnseen, Asking::kInTurn}));
  EXPECT_THROW(parse_asking({"both", "none"}), Error);
  EXPECT_THROW(parse_asking({}), Error);
}

}  // namespace
}  // namespace coppice
