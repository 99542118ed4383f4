#include "coppice/eval/needles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "coppice/core/mapped_file.h"

namespace coppice {
namespace {

const auto kKinds = static_cast<int64_t>(needle_kinds().size());

TEST(Needles, hold_their_answer_and_their_question_does_not) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (int64_t kind = 0; kind < kKinds; ++kind) {
      Rng rng(seed);
      std::set<std::string> taken;
      const Needle needle = draw_needle(kind, rng, taken);
      EXPECT_EQ(needle.kind, needle_kinds()[static_cast<std::size_t>(kind)]);
      EXPECT_TRUE(contains_answer(needle.statement, needle.answers)) << needle.statement;
      EXPECT_FALSE(contains_answer(needle.question, needle.answers)) << needle.question;
      EXPECT_EQ(needle.statement.find('{'), std::string::npos);
      EXPECT_EQ(needle.question.back(), '?');
      const bool several = needle.kind.ends_with("of-several");
      EXPECT_EQ(needle.distractors.size(), several ? 3u : 0u);
      EXPECT_EQ(taken.size(), several ? 4u : 1u);
      for (const std::string& other : needle.distractors) {
        EXPECT_FALSE(contains_answer(other, needle.answers)) << other;
        EXPECT_EQ(std::ranges::count(needle.distractors, other), 1);
      }
    }
  }
}

TEST(Needles, depend_on_the_seed_and_have_several_wordings) {
  std::set<std::string> openings;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Rng one(seed), two(seed);
    std::set<std::string> taken, taken_too;
    const Needle needle = draw_needle(0, one, taken), again = draw_needle(kKinds, two, taken_too);
    EXPECT_EQ(needle.statement, again.statement);
    EXPECT_EQ(needle.answers, again.answers);
    openings.insert(needle.statement.substr(0, 6));
  }
  EXPECT_GE(openings.size(), 3u);
}

TEST(Needles, keys_of_one_text_differ) {
  Rng rng(5);
  std::set<std::string> taken;
  for (int i = 0; i < 7; ++i) draw_needle(6, rng, taken);  // four of 28 cities each
  EXPECT_EQ(taken.size(), 28u);
  EXPECT_THROW(draw_needle(6, rng, taken), std::exception);
}

TEST(Needles, words_are_none_of_those_that_gates_are_trained_with) {
  const std::string source = read_text_file(COPPICE_SOURCE_DIR "/tools/data/facts.py");
  std::set<std::string> trained;
  std::string word;
  for (const char c : source + " ") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      trained.insert(std::exchange(word, {}));
    }
  }
  ASSERT_TRUE(trained.contains("oslo") && trained.contains("crimson"));
  for (const std::string_view phrase : needle_words()) {
    std::string first(phrase.substr(0, phrase.find(' ')));
    for (char& c : first) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    EXPECT_FALSE(trained.contains(first)) << phrase;
  }
}

TEST(Needles, an_answer_counts_as_it_stands) {
  const std::vector<std::string> figure = {"48213"}, date = {"14 March", "March 14"},
                                 colour = {"teal"};
  EXPECT_TRUE(contains_answer("48213", figure));
  EXPECT_TRUE(contains_answer("It is 48213.", figure));
  EXPECT_TRUE(contains_answer("(48213)", figure));
  EXPECT_FALSE(contains_answer("It is 482130.", figure));
  EXPECT_FALSE(contains_answer("It is 148213", figure));
  EXPECT_TRUE(contains_answer("148213 or 48213", figure));
  EXPECT_FALSE(contains_answer("It is 48 213.", figure));
  EXPECT_FALSE(contains_answer("", figure));
  EXPECT_TRUE(contains_answer("On march 14, I think", date));
  EXPECT_FALSE(contains_answer("On March 15", date));
  EXPECT_TRUE(contains_answer("Teal!", colour));
  EXPECT_FALSE(contains_answer("to steal", colour));
}

}  // namespace
}  // namespace coppice
