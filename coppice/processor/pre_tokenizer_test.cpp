#include "coppice/processor/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <ctime>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/processor/pre_tokenizer_regex.h"
#include "coppice/processor/tokenizer_testing.h"
#include "coppice/processor/unicode.h"

namespace coppice {
namespace {

using Pieces = std::vector<std::string>;
using testing::repeat;

Pieces cut(std::string_view text, const std::vector<size_t>& ends) {
  Pieces pieces;
  size_t begin = 0;
  for (const size_t end : ends) {
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

Pieces split(const PreTokenizer& pre, std::string_view text) {
  std::vector<size_t> ends;
  pre.split(text, ends);
  return cut(text, ends);
}

Pieces split(std::string_view name, std::string_view text) {
  return split(PreTokenizer::from_gguf_name(name), text);
}

constexpr KnownSplit kAll[] = {KnownSplit::kGpt2, KnownSplit::kQwen2, KnownSplit::kLlama3,
                               KnownSplit::kDigits};

TEST(PreTokenizer, T03_last_blank_belongs_to_the_next_word) {
  for (const auto* name : {"gpt-2", "qwen2", "llama-bpe", "smollm"}) {
    EXPECT_EQ(split(name, "a  b"), (Pieces{"a", " ", " b"})) << name;
    EXPECT_EQ(split(name, "a  "), (Pieces{"a", "  "})) << name;
  }
  EXPECT_EQ(split("qwen2", "def f():\n    return  x"),
            (Pieces{"def", " f", "():\n", "   ", " return", " ", " x"}));
  EXPECT_EQ(split("gpt-2", "def f():\n    return  x"),
            (Pieces{"def", " f", "():", "\n   ", " return", " ", " x"}));
  EXPECT_EQ(split("qwen2", "a \t b"), (Pieces{"a", " \t", " b"}));
  EXPECT_EQ(split("qwen2", "a\tb"), (Pieces{"a", "\tb"}));
  EXPECT_EQ(split("qwen2", "a  \n \n  b"), (Pieces{"a", "  \n \n", " ", " b"}));
}

TEST(PreTokenizer, T04_symbol_runs_and_digits) {
  EXPECT_EQ(split("qwen2", "(x):\n"), (Pieces{"(x", "):\n"}));
  EXPECT_EQ(split("qwen2", "a->b 12345"), (Pieces{"a", "->", "b", " ", "1", "2", "3", "4", "5"}));
  EXPECT_EQ(split("llama-bpe", "12345"), (Pieces{"123", "45"}));
  EXPECT_EQ(split("gpt-2", " 12345"), (Pieces{" 12345"}));
  EXPECT_EQ(split("smollm", "In 2024, 3.50"),
            (Pieces{"In", " ", "2", "0", "2", "4", ",", " ", "3", ".", "5", "0"}));
}

TEST(PreTokenizer, Contractions) {
  EXPECT_EQ(split("gpt-2", "don't I'LL"), (Pieces{"don", "'t", " I", "'", "LL"}));
  EXPECT_EQ(split("qwen2", "don't I'LL"), (Pieces{"don", "'t", " I", "'LL"}));
  EXPECT_EQ(split("llama-bpe", "'\u017fx"), (Pieces{"'\u017f", "x"}));
  EXPECT_EQ(split("gpt-2", "'"), (Pieces{"'"}));
  EXPECT_EQ(split("qwen2", "'r"), (Pieces{"'r"}));
}

TEST(PreTokenizer, T05_missing_or_unknown_name_is_refused) {
  for (const auto* name : {"", "default", "qwen35"}) {
    try {
      PreTokenizer::from_gguf_name(name);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("smollm"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("tokenizer.ggml.pre"), std::string::npos);
    }
  }
}

// Whether the classes of both sides agree: not on the newest letters.
bool pcre2_knows(std::string_view character) {
  const uint32_t c = code_point_at(character, 0).value;
  return c < 0x10000 && c != 0x1C89 && c != 0x1C8A && !(c >= 0xA7CB && c <= 0xA7DC);
}

TEST(PreTokenizer, ScannersEqualTheirExpressions) {
  Rng rng(11);
  for (const KnownSplit known : kAll) {
    PreTokenizer scanner;
    scanner.add(known);
    const RegexSplitter regex(split_pattern(known));
    for (int round = 0; round < 4000; ++round) {
      std::string text;
      for (uint64_t n = 1 + rng.below(16); n > 0; --n) {
        const std::string c = testing::nasty_character(rng.below(uint64_t{1} << 62));
        text += pcre2_knows(c) ? c : "x";
      }
      std::vector<size_t> expected;
      regex.split(text, 0, expected);
      ASSERT_EQ(split(scanner, text), cut(text, expected)) << static_cast<int>(known);
    }
  }
}

TEST(PreTokenizer, PiecesPartitionTheText) {
  Rng rng(5);
  for (const auto* name : {"gpt-2", "qwen2", "llama-bpe", "smollm"}) {
    for (int round = 0; round < 500; ++round) {
      std::string text;
      for (uint64_t n = rng.below(30); n > 0; --n) {
        text += testing::nasty_character(rng.below(uint64_t{1} << 62));
      }
      std::string joined;
      for (const std::string& piece : split(name, text)) {
        ASSERT_FALSE(piece.empty());
        joined += piece;
      }
      ASSERT_EQ(joined, text);
    }
  }
}

TEST(PreTokenizer, T01_T02_long_runs_take_linear_time) {
  for (const KnownSplit known : kAll) {
    PreTokenizer scanner;
    scanner.add(known);
    const RegexSplitter regex(split_pattern(known));
    for (const auto* unit : {"A", " ", "\n", " \n", "\t ", "us", "1", ".", "'s", "\u0301"}) {
      const std::string text = "a" + repeat(unit, 100'000) + "b";
      const auto start = std::clock();
      std::vector<size_t> ends;
      std::vector<size_t> expected;
      scanner.split(text, ends);
      regex.split(text, 0, expected);
      EXPECT_LT(std::clock() - start, 10 * CLOCKS_PER_SEC) << unit;
      EXPECT_EQ(ends, expected) << static_cast<int>(known) << " " << unit;
    }
  }
}

TEST(RegexSplitter, GapsArePiecesAndBlanksAreWhiteSpace) {
  const RegexSplitter letters(R"([^\s\p{L}]+)");
  std::vector<size_t> ends;
  letters.split("ab12 c\u180e", 10, ends);
  EXPECT_EQ(ends, (std::vector<size_t>{12, 14, 16, 19}));
  const RegexSplitter blanks(R"(\s+)");
  ends.clear();
  blanks.split("\u180ea\u0085", 0, ends);
  EXPECT_EQ(ends, (std::vector<size_t>{4, 6}));
}

TEST(RegexSplitter, BadPatternsAndRunawayMatchesAreErrors) {
  EXPECT_THROW(RegexSplitter("(a"), Error);
  EXPECT_THROW(RegexSplitter(R"(\C)"), Error);
  const RegexSplitter runaway("(?:a+)+[^ab]");
  std::vector<size_t> ends;
  EXPECT_THROW(runaway.split(repeat("a", 40), 0, ends), Error);
}

}  // namespace
}  // namespace coppice
