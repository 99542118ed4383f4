// Splits a template's source into text and tokens, with the white-space rules that chat templates
// are written for: trim_blocks and lstrip_blocks on, "-" and "+" signs, one final newline dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::jinja {

enum class TokenKind : uint8_t {
  kData,  // text between tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  // with escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int64_t integer = 0;
  double real = 0;
  int line = 1;
};

// The tokens of `source`, kEnd last; comments are gone and raw blocks are data.
// Throws kInvalidArgument with the line for text that no template can hold.
std::vector<Token> tokenize(std::string_view source);

}  // namespace coppice::jinja
