// UTF-8, the three character classes that pre-tokenizers split on, and composition (NFC).
//
// Classes follow Unicode 16: utf8proc's tables plus the letters and numbers assigned after them, so
// that every code point falls where the regex engine of the reference tokenizers puts it.
// All functions are pure and thread-safe, and linear in the length of the text (composition sorts
// runs of combining marks: n log n).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace coppice {

enum class CharClass : uint8_t {
  kOther,
  kLetter,  // \p{L}
  kNumber,  // \p{N}
  kSpace,   // \s, that is White_Space, other than the two below
  kNewline  // \r and \n
};

// The class of one code point; kOther for what is no code point.
CharClass char_class(uint32_t code_point);

struct CodePoint {
  uint32_t value;
  uint32_t bytes;  // 1 to 4
};

// The character at `at`. REQUIRES: at < text.size(), text is valid UTF-8.
CodePoint code_point_at(std::string_view text, size_t at);

// Length in bytes of the UTF-8 sequence at the start of `text`: > 0 for a well-formed character;
// 0 when `text` ends before the character does (more bytes may complete it); < 0 for an ill-formed
// one, whose absolute value is the length of the maximal subpart that one U+FFFD replaces.
// REQUIRES: text not empty.
int utf8_sequence(std::string_view text);

bool is_valid_utf8(std::string_view text);

// `text` with each maximal ill-formed subpart replaced by U+FFFD (as Python's errors="replace").
std::string replace_invalid_utf8(std::string_view text);

// Appends a code point. REQUIRES: a Unicode scalar value.
void append_utf8(std::string& out, uint32_t code_point);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Appends the canonical composition of `text`. REQUIRES: valid UTF-8. Nothing before an ASCII
// character ever combines with it, so text may be normalised in chunks that start with one.
void append_nfc(std::string& out, std::string_view text);

// Turns bytes that arrive in pieces into valid UTF-8: holds back an unfinished character, replaces
// ill-formed bytes. The join of all results equals replace_invalid_utf8 of the joined input.
class Utf8Assembler final {
 public:
  // Appends to `out` what is complete once `bytes` follow.
  void push(std::string_view bytes, std::string& out);
  // Ends the text: an unfinished character becomes one U+FFFD.
  void flush(std::string& out);

 private:
  std::string pending_;  // at most 3 bytes: a well-formed start of one character
};

}  // namespace coppice
