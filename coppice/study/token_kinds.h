// What a token is to a reader: the rough kinds by which a study tells what a head keeps.
//
// A token's kind follows from its own bytes and from whether it goes on with a word that the token
// before it left open. English alone is told apart finely: words of other scripts are "other".
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace coppice {

class Tokenizer;

enum class TokenKind : uint8_t {
  kSpecial,      // a control token
  kNewline,      // blank, with a line break
  kPunctuation,  // no letter and no digit
  kDigits,       // a digit
  kCapitalised,  // a word that starts with a capital: names, and the starts of sentences
  kFunction,     // articles, pronouns, prepositions, auxiliaries, however they are written
  kContent,      // any other word
  kPiece,        // goes on with a word begun before it
  kOther,        // blanks alone, other scripts, parts of characters
};

inline constexpr std::size_t kTokenKinds = 9;
extern const std::array<std::string_view, kTokenKinds> kTokenKindNames;  // in the order above

// The kind of a token's text. `inside_word`: the text before it ends in a letter.
TokenKind kind_of_text(std::string_view text, bool inside_word);

// -> [tokens]
std::vector<TokenKind> token_kinds(const Tokenizer& tokenizer, std::span<const int32_t> ids);

}  // namespace coppice
