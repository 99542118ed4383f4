#include "coppice/study/token_kinds.h"

#include <gtest/gtest.h>

#include "coppice/eval/eval_testing.h"

namespace coppice {
namespace {

TEST(TokenKinds, FollowFromTheText) {
  const struct {
    std::string_view text;
    bool inside;
    TokenKind kind;
  } cases[] = {
      {" the", false, TokenKind::kFunction},     {"The", false, TokenKind::kFunction},
      {" Emma", false, TokenKind::kCapitalised}, {"house", false, TokenKind::kContent},
      {" house", true, TokenKind::kContent},     {"house", true, TokenKind::kPiece},
      {"an", true, TokenKind::kPiece},           {",", true, TokenKind::kPunctuation},
      {"\n\n", false, TokenKind::kNewline},      {" \n", false, TokenKind::kNewline},
      {" ", false, TokenKind::kOther},           {" 17", false, TokenKind::kDigits},
      {"A4", false, TokenKind::kDigits},         {"\xE2\x80\x94", false, TokenKind::kPunctuation},
      {"\xD1\x8F", false, TokenKind::kOther},    {"\xE2\x80", false, TokenKind::kOther},
      {"'s", true, TokenKind::kContent},         {"", false, TokenKind::kOther},
  };
  for (const auto& c : cases) EXPECT_EQ(kind_of_text(c.text, c.inside), c.kind) << c.text;
}

TEST(TokenKinds, AWordGoesOnAcrossTokens) {
  const Tokenizer tokenizer = testing::byte_tokenizer();
  std::vector<int32_t> ids = tokenizer.encode("of Bo\n7", {.parse_special = false});
  ids.insert(ids.begin(), testing::kByteEnd);
  const std::vector<TokenKind> expected = {
      TokenKind::kSpecial,     TokenKind::kContent, TokenKind::kPiece,   TokenKind::kOther,
      TokenKind::kCapitalised, TokenKind::kPiece,   TokenKind::kNewline, TokenKind::kDigits};
  EXPECT_EQ(token_kinds(tokenizer, ids), expected);
}

}  // namespace
}  // namespace coppice
