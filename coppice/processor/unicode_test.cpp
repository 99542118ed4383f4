#include "coppice/processor/unicode.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "coppice/core/rng.h"
#include "coppice/processor/tokenizer_testing.h"

namespace coppice {
namespace {

std::string nfc(std::string_view text) {
  std::string out;
  append_nfc(out, text);
  return out;
}

TEST(Unicode, ClassesOfEveryKind) {
  EXPECT_EQ(char_class('a'), CharClass::kLetter);
  EXPECT_EQ(char_class(0x4E2D), CharClass::kLetter);
  EXPECT_EQ(char_class('7'), CharClass::kNumber);
  EXPECT_EQ(char_class(0xBD), CharClass::kNumber);
  EXPECT_EQ(char_class(0x2160), CharClass::kNumber);
  EXPECT_EQ(char_class(' '), CharClass::kSpace);
  EXPECT_EQ(char_class(0x3000), CharClass::kSpace);
  EXPECT_EQ(char_class(0x85), CharClass::kSpace);
  EXPECT_EQ(char_class('\n'), CharClass::kNewline);
  EXPECT_EQ(char_class('\r'), CharClass::kNewline);
  EXPECT_EQ(char_class(0x301), CharClass::kOther);
  EXPECT_EQ(char_class(0x180E), CharClass::kOther);
  EXPECT_EQ(char_class(0x200B), CharClass::kOther);
  EXPECT_EQ(char_class(0x1C), CharClass::kOther);
  EXPECT_EQ(char_class(0x110000), CharClass::kOther);
}

TEST(Unicode, ClassesOfUnicode16) {
  EXPECT_EQ(char_class(0x2EBF0), CharClass::kLetter);
  EXPECT_EQ(char_class(0x1E5F0), CharClass::kLetter);
  EXPECT_EQ(char_class(0x1CCF0), CharClass::kNumber);
  EXPECT_EQ(char_class(0x10D40), CharClass::kNumber);
}

TEST(Unicode, SequencesSayWellFormedUnfinishedOrIllFormed) {
  EXPECT_EQ(utf8_sequence("a"), 1);
  EXPECT_EQ(utf8_sequence("\xC3\xA9"), 2);
  EXPECT_EQ(utf8_sequence("\xF0\x9F\x98\x80"), 4);
  EXPECT_EQ(utf8_sequence("\xF0\x9F\x98"), 0);
  EXPECT_EQ(utf8_sequence("\xF0\x9F\x98."), -3);
  EXPECT_EQ(utf8_sequence("\xC0\x80"), -1);
  EXPECT_EQ(utf8_sequence("\xED\xA0\x80"), -1);
  EXPECT_EQ(utf8_sequence("\xF4\x90\x80\x80"), -1);
  EXPECT_EQ(utf8_sequence("\x80"), -1);
  EXPECT_EQ(utf8_sequence("\xE0\x80"), -1);
}

TEST(Unicode, IllFormedPartsBecomeOneReplacementEach) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(replace_invalid_utf8("a\xC0\x80z"), "a" + r + r + "z");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98."), r + ".");
  EXPECT_EQ(replace_invalid_utf8("\xE4\xBD"), r);
  EXPECT_EQ(replace_invalid_utf8("\xE4\xBD\xE4\xBD\xA0"), r + "\xE4\xBD\xA0");
}

TEST(Unicode, AssemblerInAnyPiecesEqualsTheWhole) {
  Rng rng(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (uint64_t n = rng.below(12); n > 0; --n) {
      // Lead, continuation and ASCII bytes, at about equal shares.
      const uint64_t kind = rng.below(4);
      const uint64_t byte = kind == 0   ? rng.below(128)
                            : kind == 1 ? 0x80 + rng.below(64)
                                        : 0xC0 + rng.below(64);
      bytes.push_back(static_cast<char>(byte));
    }
    std::string joined;
    Utf8Assembler assembler;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = 1 + rng.below(3);
      std::string part;
      assembler.push(std::string_view(bytes).substr(at, n), part);
      ASSERT_TRUE(is_valid_utf8(part));
      joined += part;
      at += n;
    }
    assembler.flush(joined);
    ASSERT_EQ(joined, replace_invalid_utf8(bytes));
    ASSERT_TRUE(is_valid_utf8(joined));
  }
}

TEST(Unicode, Composition) {
  EXPECT_EQ(nfc("plain"), "plain");
  EXPECT_EQ(nfc("cafe\u0301 x"), "caf\u00e9 x");
  EXPECT_EQ(nfc("\u1112\u1161\u11ab\u1100\u1173\u11af"), "\ud55c\uae00");
  EXPECT_EQ(nfc("a\u0301\u0323"), nfc("a\u0323\u0301"));
  EXPECT_EQ(nfc("a\u0301\u0323"), "\u1ea1\u0301");
  EXPECT_EQ(nfc("\u212b\u2126"), "\u00c5\u03a9");
  EXPECT_EQ(nfc("\u0301e"), "\u0301e");
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");  // excluded from composition
}

TEST(Unicode, CompositionOfLongRunsOfMarksStaysFast) {
  const std::string marks = "e" + testing::repeat("\u0301\u0316", 200'000);
  const auto start = std::clock();
  const std::string once = nfc(marks);
  EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC);
  EXPECT_EQ(nfc(once), once);
  EXPECT_TRUE(once.starts_with("\u00e9\u0316\u0316"));
}

}  // namespace
}  // namespace coppice
