// Text of the template interpreter: UTF-8 bytes that remember which of them are user data.
//
// Provenance: `plain` lists the bytes that came from the conversation (messages, tools, extra
// arguments) rather than from the template. Every operation here keeps it exactly: a byte of a
// result is plain when the byte (or character) it was made from is plain.
//
// Invariants: `bytes` is valid UTF-8; `plain` is sorted, merged, and lies inside `bytes`.
// Characters are Unicode code points, as in Python. All functions are pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/processor/text_range.h"

namespace coppice::jinja {

struct Text {
  std::string bytes;
  std::vector<TextRange> plain;
  // Marked by the `safe` filter: `+` with another string escapes that string for HTML, as the
  // Markup type of Python does.
  bool markup = false;
};

// Puts a text together, piece by piece.
class TextBuilder final {
 public:
  void append(std::string_view bytes, bool plain);
  void append(const Text& text) { append(text, 0, text.bytes.size()); }
  // The bytes [begin, end) of `text`. REQUIRES: character boundaries, begin <= end <= size.
  void append(const Text& text, size_t begin, size_t end);
  void append_char(char32_t c, bool plain);
  size_t size() const { return text_.bytes.size(); }
  Text take() { return std::move(text_); }

 private:
  void mark(size_t begin, size_t end);
  Text text_;
};

// Tells for rising offsets whether the byte there is plain; amortised constant time.
class PlainCursor final {
 public:
  explicit PlainCursor(const Text& text) : ranges_(text.plain) {}
  bool at(size_t offset);

 private:
  const std::vector<TextRange>& ranges_;
  size_t next_ = 0;
};

bool valid_utf8(std::string_view bytes);
// The character at `position`, which moves behind it. REQUIRES: position < bytes.size().
char32_t next_char(std::string_view bytes, size_t& position);
void append_utf8(char32_t c, std::string& out);
int64_t char_count(std::string_view bytes);
// Python's str.isspace() of one character.
bool is_space(char32_t c);
// A letter that has an upper or lower case.
bool is_cased(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);

// The bytes of [begin, end) as a text of its own.
Text sub_text(const Text& text, size_t begin, size_t end);
// Python's text[start:stop:step]; an absent bound is the end it stands for. REQUIRES: step != 0.
Text slice_text(const Text& text, std::optional<int64_t> start, std::optional<int64_t> stop,
                int64_t step);
// The character at `index` (negative counts from the end), nothing when there is none.
std::optional<Text> char_at(const Text& text, int64_t index);
// Every character as a text of its own.
std::vector<Text> split_chars(const Text& text);

// strip(): `characters` is the set to remove; nothing means white space.
Text strip_text(const Text& text, std::optional<std::string_view> characters, bool left,
                bool right);
// split() and rsplit(). No separator: runs of white space. max_split < 0: no limit.
// REQUIRES: the separator is not empty.
std::vector<Text> split_text(const Text& text, std::optional<std::string_view> separator,
                             int64_t max_split, bool from_right);
std::vector<Text> split_lines(const Text& text, bool keep_ends);
// replace(): count < 0 means all; an empty `from` matches between all characters.
Text replace_text(const Text& text, std::string_view from, const Text& to, int64_t count);

enum class CaseChange {
  kUpper,
  kLower,
  kCapitalize,   // first character upper, the rest lower
  kTitle,        // str.title(): a letter behind anything but a letter is upper
  kFilterTitle,  // the filter `title`: words begin behind white space and -({[<
};
Text change_case(const Text& text, CaseChange change);
// & < > ' " as HTML entities.
Text escape_html(const Text& text);

}  // namespace coppice::jinja
