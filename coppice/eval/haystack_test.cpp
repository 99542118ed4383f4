#include "coppice/eval/haystack.h"

#include <gtest/gtest.h>

#include "coppice/core/error.h"
#include "coppice/eval/eval_testing.h"

namespace coppice {
namespace {

using Sentences = std::vector<std::string_view>;

TEST(Haystack, sentences_end_where_readers_end_them) {
  EXPECT_EQ(split_sentences("One. Two!  \"Three?\" Four"),
            (Sentences{"One. ", "Two!  ", "\"Three?\" ", "Four"}));
  EXPECT_EQ(split_sentences("Mr. Hyde met J. Grant. He ran"),
            (Sentences{"Mr. Hyde met J. Grant. ", "He ran"}));
  EXPECT_EQ(split_sentences("wrapped\nline. Next\n\nTITLE\n\n\nend."),
            (Sentences{"wrapped\nline. ", "Next\n\n", "TITLE\n\n\n", "end."}));
  EXPECT_EQ(split_sentences("pi is 3.14 today."), (Sentences{"pi is 3.14 today."}));
  EXPECT_EQ(split_sentences("He said \xe2\x80\x9cno.\xe2\x80\x9d She"),
            (Sentences{"He said \xe2\x80\x9cno.\xe2\x80\x9d ", "She"}));
  EXPECT_TRUE(split_sentences("").empty());
}

TEST(Haystack, sentences_joined_are_the_text) {
  const std::string text = "A b. C? \n\n D!) e.\n\n\nf . . g...\n";
  std::string joined;
  for (const std::string_view sentence : split_sentences(text)) joined += sentence;
  EXPECT_EQ(joined, text);
}

TEST(Haystack, facts_stand_at_their_depths) {
  const Sentences units = {"a. ", "b. ", "c. ", "d. ", "e.\n\n", "f. ", "g. ", "h. ", "i. ", "j. "};
  const std::vector<int64_t> sizes(10, 5);
  std::vector<double> found;
  const std::vector<Planted> planted = {
      {"HALF.", 0.5}, {"NONE.", 0.0}, {"ALL.", 1.0}, {"LATE.", 0.86}};
  EXPECT_EQ(plant(units, sizes, planted, found),
            "NONE. a. b. c. d. e.\n\nHALF. f. g. h. i. LATE. j. ALL.");
  EXPECT_EQ(found, (std::vector<double>{0.5, 0.0, 1.0, 0.9}));
  // Sizes count, not how many sentences there are.
  plant(Sentences{"a. ", "b. ", "c. "}, std::vector<int64_t>{80, 10, 10},
        std::vector<Planted>{{"X.", 0.5}}, found);
  EXPECT_EQ(found.front(), 0.8);
  EXPECT_EQ(plant({}, {}, std::vector<Planted>{{"X.", 0.5}}, found), "X.");
}

TEST(Haystack, passages_follow_each_other_and_go_round) {
  const Tokenizer tokenizer = testing::byte_tokenizer();
  Haystack haystack({"  One. Two. ", " \n", "Three."});
  EXPECT_EQ(haystack.size(), 3);
  EXPECT_EQ(haystack.sentence(0), "One. ");
  EXPECT_EQ(haystack.sentence(1), "Two.\n\n");
  EXPECT_EQ(haystack.sentence(5), "Three.\n\n");
  EXPECT_EQ(haystack.tokens(0, tokenizer), 5);
  EXPECT_EQ(haystack.tokens(3, tokenizer), 5);
  EXPECT_THROW(Haystack({"", " \n"}), Error);
}

}  // namespace
}  // namespace coppice
