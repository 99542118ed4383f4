#include "coppice/study/token_kinds.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "coppice/processor/tokenizer.h"

namespace coppice {
namespace {

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) { return is_upper(c) || (c >= 'a' && c <= 'z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

// Quotation marks, dashes and the ellipsis: U+2000 to U+206F, E2 80 or E2 81 in UTF-8.
bool is_general_punctuation(std::string_view text) {
  if (text.size() % 3 != 0) return false;
  for (std::size_t at = 0; at < text.size(); at += 3)
    if (text[at] != '\xE2' || (text[at + 1] != '\x80' && text[at + 1] != '\x81')) return false;
  return !text.empty();
}

bool is_function_word(std::string_view word) {
  static const std::unordered_set<std::string_view> kWords = {
      "a",     "about",   "above",  "after",  "again", "all",   "also",  "am",    "an",
      "and",   "any",     "are",    "as",     "at",    "be",    "been",  "being", "before",
      "below", "between", "both",   "but",    "by",    "can",   "could", "did",   "do",
      "does",  "during",  "each",   "for",    "from",  "had",   "has",   "have",  "he",
      "her",   "hers",    "him",    "his",    "how",   "i",     "if",    "in",    "into",
      "is",    "it",      "its",    "itself", "may",   "me",    "might", "mine",  "more",
      "most",  "must",    "my",     "no",     "nor",   "not",   "of",    "off",   "on",
      "once",  "only",    "or",     "other",  "our",   "ours",  "out",   "over",  "own",
      "same",  "shall",   "she",    "should", "so",    "some",  "such",  "than",  "that",
      "the",   "their",   "theirs", "them",   "then",  "there", "these", "they",  "this",
      "those", "to",      "too",    "under",  "until", "up",    "upon",  "very",  "was",
      "we",    "were",    "what",   "when",   "where", "which", "while", "who",   "whom",
      "whose", "why",     "will",   "with",   "would", "you",   "your",  "yours"};
  std::string lower(word);
  for (char& c : lower)
    if (is_upper(c)) c = static_cast<char>(c - 'A' + 'a');
  return kWords.contains(lower);
}

}  // namespace

const std::array<std::string_view, kTokenKinds> kTokenKindNames = {
    "special",  "newline",      "punctuation", "digits", "capitalised",
    "function", "content word", "word piece",  "other"};

TokenKind kind_of_text(std::string_view text, bool inside_word) {
  std::string_view word = text;
  while (!word.empty() && is_blank(word.front())) word.remove_prefix(1);
  if (word.empty())
    return text.find('\n') != std::string_view::npos ? TokenKind::kNewline : TokenKind::kOther;
  if (std::ranges::any_of(word, is_digit)) return TokenKind::kDigits;
  if (!std::ranges::any_of(word, is_letter)) {
    const bool ascii = std::ranges::all_of(word, is_ascii);
    return ascii || is_general_punctuation(word) ? TokenKind::kPunctuation : TokenKind::kOther;
  }
  if (inside_word && word.size() == text.size() && is_letter(word.front()))
    return TokenKind::kPiece;
  if (is_function_word(word)) return TokenKind::kFunction;
  return is_upper(word.front()) ? TokenKind::kCapitalised : TokenKind::kContent;
}

std::vector<TokenKind> token_kinds(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::vector<TokenKind> kinds;
  kinds.reserve(ids.size());
  bool inside_word = false;
  for (const int32_t id : ids) {
    if (tokenizer.is_special(id)) {
      kinds.push_back(TokenKind::kSpecial);
      inside_word = false;
      continue;
    }
    const std::string_view text = tokenizer.token_bytes(id);
    kinds.push_back(kind_of_text(text, inside_word));
    if (!text.empty()) inside_word = is_letter(text.back());
  }
  return kinds;
}

}  // namespace coppice
