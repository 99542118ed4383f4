#include "coppice/eval/ruler.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>

#include "coppice/core/error.h"
#include "coppice/engine/engine_testing.h"
#include "coppice/eval/eval_testing.h"
#include "coppice/eval/evaluator.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

class RulerTest : public ::testing::Test {
 protected:
  RulerTest()
      : tokenizer(byte_tokenizer()),
        chat(kChatmlTemplate),
        model(byte_text_model(tokenizer, chat, 9000)) {
    std::string text;
    for (int i = 0; i < 400; ++i) {
      std::string word;
      for (int n = i; word.size() < 5; n /= 7) word += static_cast<char>('a' + n % 7);
      text += fmt::format("Sentence {} tells of {}. ", i, word);
    }
    passages = {text};
  }

  RulerTask task(RulerOptions options) const { return {model, passages, std::move(options)}; }

  Tokenizer tokenizer;
  ChatTemplate chat;
  TextModel model;
  std::vector<std::string> passages;
};

// How often each word of small letters or digits stands in a text.
std::map<std::string, int> counts(const std::string& text) {
  std::map<std::string, int> all;
  std::string word;
  for (const char c : text + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += c;
    } else if (!word.empty()) {
      ++all[word];
      word.clear();
    }
  }
  return all;
}

TEST_F(RulerTest, prompts_fill_their_length_and_never_pass_it) {
  RulerTask one = task({.lengths = {4000, 7000}});
  for (const std::string_view kind : ruler_kinds()) {
    for (const int64_t length : {4000, 4001, 7000}) {
      for (int64_t number = 0; number < 3; ++number) {
        const RulerPrompt prompt = one.make_prompt(kind, length, number);
        const int64_t seen = asked_prompts(model, prompt.reading, Asking::kSeen)[0].tokens();
        const int64_t unseen = asked_prompts(model, prompt.reading, Asking::kUnseen)[0].tokens();
        EXPECT_LE(seen, length) << kind;
        EXPECT_GT(seen, length - 60) << kind;
        EXPECT_LT(unseen, seen) << kind;
      }
    }
  }
}

TEST_F(RulerTest, needles_stand_in_the_text_and_nothing_of_the_answer_in_the_question) {
  RulerTask one = task({.lengths = {4000}});
  const std::map<std::string, std::size_t> expected = {
      {"single", 1}, {"multi-key", 1}, {"multi-value", 4}, {"multi-query", 4}, {"variables", 5}};
  for (const auto& [kind, references] : expected) {
    std::set<std::string> wordings;
    for (int64_t number = 0; number < 12; ++number) {
      const RulerPrompt prompt = one.make_prompt(kind, 4000, number);
      const Reading::Question& question = prompt.reading.questions.at(0);
      ASSERT_EQ(prompt.references.size(), references) << kind;
      EXPECT_EQ(ruler_score(prompt.reading.passage, prompt.references), 1.0) << kind;
      EXPECT_EQ(ruler_score(question.text + question.opening, prompt.references), 0.0) << kind;
      std::set<std::string> different(prompt.references.begin(), prompt.references.end());
      EXPECT_EQ(different.size(), references) << kind;
      const std::string& text = prompt.reading.passage;
      const std::size_t begin = text.rfind(". ", text.find(prompt.references[0]));
      wordings.insert(text.substr(begin == std::string::npos ? 0 : begin + 2, 3));
    }
    EXPECT_GT(wordings.size(), 2u) << kind;
  }
}

TEST_F(RulerTest, other_keys_have_other_numbers) {
  RulerTask one = task({.lengths = {4000}});
  const auto numbers = [&](const char* kind) {
    int found = 0;
    for (const auto& [word, times] : counts(one.make_prompt(kind, 4000, 1).reading.passage))
      found += word.size() == 7 && std::ranges::all_of(word, ::isdigit) ? times : 0;
    return found;
  };
  EXPECT_EQ(numbers("single"), 1);
  EXPECT_EQ(numbers("multi-key"), 4);
  EXPECT_EQ(numbers("multi-value"), 4);
  EXPECT_EQ(numbers("multi-query"), 4);
}

// Each variable is told after the one that it copies.
TEST_F(RulerTest, variables_are_a_chain) {
  RulerTask one = task({.kinds = {"variables"}, .lengths = {4000}});
  for (int64_t number = 0; number < 6; ++number) {
    const RulerPrompt prompt = one.make_prompt("variables", 4000, number);
    const auto times = counts(prompt.reading.passage);
    std::size_t last = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(times.at(prompt.references[i]), i == 4 ? 1 : 2);
      const std::size_t place = prompt.reading.passage.find(prompt.references[i], last);
      ASSERT_NE(place, std::string::npos);
      last = place;
    }
  }
}

TEST_F(RulerTest, lists_have_their_words_as_often_as_they_should) {
  RulerTask one = task({.lengths = {6000}});
  const RulerPrompt common = one.make_prompt("common-words", 6000, 2);
  ASSERT_EQ(common.references.size(), 10u);
  const std::string list =
      common.reading.passage.substr(common.reading.passage.find(':'));  // behind the introduction
  for (const auto& [word, times] : counts(list))
    EXPECT_EQ(times, std::ranges::count(common.references, word) > 0 ? 30 : 3) << word;

  const RulerPrompt frequent = one.make_prompt("frequent-words", 6000, 2);
  ASSERT_EQ(frequent.references.size(), 3u);
  const auto times = counts(frequent.reading.passage);
  const double first = times.at(frequent.references[0]);
  EXPECT_NEAR(times.at(frequent.references[1]) / first, 1.0 / 4, 0.02);
  EXPECT_NEAR(times.at(frequent.references[2]) / first, 1.0 / 9, 0.02);
  for (const auto& [word, count] : times)
    if (std::ranges::count(frequent.references, word) == 0) {
      EXPECT_LT(count, times.at(frequent.references[2])) << word;
    }
}

TEST_F(RulerTest, a_prompt_depends_on_seed_kind_length_and_number_alone) {
  RulerTask few = task({.kinds = {"multi-key"}, .lengths = {2000}, .trials = 2, .seed = 4});
  RulerTask many = task({.lengths = {6000, 4000, 3000}, .trials = 9, .seed = 4});
  many.make_prompt("single", 6000, 3);
  const auto text = [](RulerTask& one, int64_t number) {
    return one.make_prompt("multi-key", 3000, number).reading.passage;
  };
  EXPECT_EQ(text(few, 1), text(many, 1));
  EXPECT_NE(text(few, 1), text(few, 0));
  RulerTask other = task({.kinds = {"multi-key"}, .lengths = {2000}, .trials = 2, .seed = 5});
  EXPECT_NE(text(few, 1), text(other, 1));
}

TEST(Ruler, E02_the_score_is_the_share_of_references_named) {
  const std::vector<std::string> references = {"1234567", "7654321", "TOBU", "kamilo"};
  EXPECT_EQ(ruler_score("1234567, 7654321, TOBU and Kamilo.", references), 1.0);
  EXPECT_EQ(ruler_score("It is 1234567.", references), 0.25);
  EXPECT_EQ(ruler_score("12345678 TOBUS kamilon 07654321", references), 0.0);
  EXPECT_EQ(ruler_score("", references), 0.0);
}

TEST_F(RulerTest, K15_a_grid_is_run_and_summed_up) {
  RulerTask small = task({.kinds = {"single", "variables"},
                          .lengths = {900},
                          .trials = 2,
                          .asking = {Asking::kUnseen, Asking::kSeen},
                          .seed = 1});
  ASSERT_EQ(small.items(), 8);
  const CacheConfig sizes =
      cache_config(model.base.model->args(), at::kFloat, c10::Device(c10::kCPU));
  const auto settings = eval_settings({"streaming"}, {24, 1000}, {}, sizes, "retention");
  const ScratchFile scratch;
  RecordFile file = RecordFile::open(scratch.path(), Json::object());
  const RowTable rows = run_evaluation(small, settings, sizes, Json::object(), file);
  EXPECT_EQ(file.rows().size(), 8u * 3);
  for (const Json& row : file.rows()) {
    EXPECT_LE(row.at("tokens"), 900);
    EXPECT_LE(row.at("bytes_peak"), row.at("bytes_bound"));
    if (row.at("budget") == 24) {
      EXPECT_EQ(row.at("kept_entries"), 24 * sizes.num_layers * sizes.num_kv_heads);
    }
  }
  const Json summary = small.summarise(rows, settings);
  ASSERT_EQ(summary.size(), 4u * 3);  // two kinds, two ways
  EXPECT_EQ(summary[0]["trials"], 2);
  EXPECT_NE(small.table(summary).find("variables"), std::string::npos);
}

TEST_F(RulerTest, bad_options_are_refused) {
  const auto code = [&](const RulerOptions& options) { return code_of([&] { task(options); }); };
  EXPECT_EQ(code({.kinds = {"haystack"}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.kinds = {"single", "single"}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.lengths = {}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.kinds = {"single"}, .lengths = {100}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.kinds = {"common-words"}, .lengths = {1000}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.lengths = {4000}, .trials = 0}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.lengths = {4000}, .asking = {Asking::kInTurn}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.lengths = {9000}}), ErrorCode::kCapacity);
  passages = {"Too short a text. "};
  EXPECT_EQ(code({.kinds = {"single"}, .lengths = {900}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.kinds = {"common-words"}, .lengths = {900}}), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice
