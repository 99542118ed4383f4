// Byte ranges of a text as ranges of its tokens, against the bytes that the tokens stand for.
#include "coppice/processor/token_places.h"

#include <gtest/gtest.h>

#include "coppice/core/rng.h"
#include "coppice/processor/tokenizer_testing.h"

namespace coppice {
namespace {

using testing::TinyBpe;

std::optional<std::vector<TokenRange>> find(const Tokenizer& tokenizer, const std::string& text,
                                            const std::vector<TextRange>& ranges,
                                            const std::vector<TextRange>& plain = {}) {
  return token_places(tokenizer, text, plain, tokenizer.encode(text, {}, plain), ranges);
}

TEST(TokenPlaces, ends_at_control_tokens_are_exact) {
  const Tokenizer tokenizer = Tokenizer::from_gguf(TinyBpe{.merges = {"a b", "ab c"}}.gguf());
  const std::string text = "<|im_start|>abc<|im_end|>\n<|im_start|>ab<|im_end|>\n";
  const auto places = find(tokenizer, text, {{0, 26}, {26, 51}});
  ASSERT_TRUE(places);
  EXPECT_EQ(*places, (std::vector<TokenRange>{{0, 4}, {4, 8}}));
  // Control tokens that a user typed are text.
  const auto typed = find(tokenizer, text, {{0, 26}, {26, 51}}, {{12, 25}});
  ASSERT_TRUE(typed);
  EXPECT_EQ((*typed)[0].end, (*typed)[1].begin);
  EXPECT_EQ((*typed)[0].end, 2 + 10 + 1);  // abc, ten characters, the line's end
}

TEST(TokenPlaces, a_token_across_an_end_belongs_to_both_sides) {
  const Tokenizer tokenizer = Tokenizer::from_gguf(TinyBpe{.merges = {"a b", "ab c"}}.gguf());
  const auto places = find(tokenizer, "xabcx", {{0, 2}, {2, 5}});
  ASSERT_TRUE(places);
  EXPECT_EQ(*places, (std::vector<TokenRange>{{0, 2}, {1, 3}}));
}

// The tokens of a range hold all of its bytes, and none but the first and last holds others.
TEST(TokenPlaces, hold_every_byte_of_the_range_and_few_others) {
  const Tokenizer tokenizer =
      Tokenizer::from_gguf(TinyBpe{.merges = {"t h", "th e", "a b", "ab c", "  "}}.gguf());
  Rng rng(3);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 20; ++i) text += testing::nasty_character(rng.below(uint64_t{1} << 62));
    const auto size = text.size();
    const std::size_t begin = rng.below(size), end = begin + 1 + rng.below(size - begin);
    const std::vector<int32_t> ids = tokenizer.encode(text);
    const auto places = token_places(
        tokenizer, text, {}, ids,
        std::vector<TextRange>{{static_cast<int64_t>(begin), static_cast<int64_t>(end)}});
    ASSERT_TRUE(places);
    std::size_t at = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::size_t next = at + tokenizer.token_bytes(ids[i]).size();
      const bool overlaps = at < end && next > begin;
      const auto index = static_cast<int64_t>(i);
      ASSERT_EQ(index >= (*places)[0].begin && index < (*places)[0].end, overlaps);
      at = next;
    }
    ASSERT_EQ(at, size);
  }
}

TEST(TokenPlaces, blanks_that_the_vocabulary_adds_are_no_bytes_of_the_text) {
  const Tokenizer tokenizer =
      Tokenizer::from_gguf(testing::tiny_sentencepiece({"\u2581", "a", "b", "\u2581a", "ab"}));
  const auto places = find(tokenizer, "a b</s>ab", {{0, 3}, {3, 7}, {7, 9}});
  ASSERT_TRUE(places);
  EXPECT_EQ((*places)[0].begin, 0);
  EXPECT_EQ((*places)[0].end, (*places)[1].begin);
  EXPECT_EQ((*places)[1].end - (*places)[1].begin, 1);
}

// A composed character spells otherwise than the text; cuts at control tokens still show.
TEST(TokenPlaces, composed_text_is_told_by_its_pieces) {
  const Tokenizer tokenizer = Tokenizer::from_gguf(TinyBpe{.pre = "qwen2"}.gguf());
  const std::string decomposed = "cafe\u0301", text = "<|im_start|>" + decomposed + "<|im_end|>x";
  if (tokenizer.encode(decomposed) != tokenizer.encode("caf\u00e9"))
    GTEST_SKIP() << "this form of vocabulary does not compose";
  const auto places = find(tokenizer, text, {{12, 18}, {28, 29}});
  ASSERT_TRUE(places);
  EXPECT_EQ(*places, (std::vector<TokenRange>{{1, 6}, {7, 8}}));
  EXPECT_FALSE(find(tokenizer, text, {{12, 16}}));  // between e and its accent
}

}  // namespace
}  // namespace coppice
