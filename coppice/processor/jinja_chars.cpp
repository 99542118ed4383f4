// Characters: UTF-8, character classes and letter case.
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

#include "coppice/processor/jinja_text.h"

namespace coppice::jinja {
namespace {

// Upper cases of more than one character (Unicode SpecialCasing.txt, unconditional entries that
// begin with a letter people write).
constexpr std::array<std::pair<char32_t, std::u32string_view>, 12> kLongUpper = {{
    {0xDF, U"SS"},
    {0x149, U"\u02BCN"},
    {0x1F0, U"J\u030C"},
    {0x390, U"\u0399\u0308\u0301"},
    {0x3B0, U"\u03A5\u0308\u0301"},
    {0x587, U"\u0535\u0552"},
    {0xFB00, U"FF"},
    {0xFB01, U"FI"},
    {0xFB02, U"FL"},
    {0xFB03, U"FFI"},
    {0xFB04, U"FFL"},
    {0xFB06, U"ST"},
}};

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

void append_upper(char32_t c, bool title, bool plain, TextBuilder& out) {
  for (const auto& [from, to] : kLongUpper) {
    if (from != c) continue;
    bool first = true;
    for (const char32_t part : to) {
      const bool upper = first || !title;
      out.append_char(
          upper ? part
                : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(part))),
          plain);
      first = false;
    }
    return;
  }
  const auto code = static_cast<utf8proc_int32_t>(c);
  out.append_char(static_cast<char32_t>(title ? utf8proc_totitle(code) : utf8proc_toupper(code)),
                  plain);
}

// Characters that do not count when a sigma asks whether it ends a word.
bool case_ignorable(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_ME ||
         kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_LM ||
         kind == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0xB7 ||
         c == 0x2019 || c == '^' || c == '`';
}

// `letter_before`: a cased letter stands before the character, with ignorable ones between.
void append_lower(std::string_view rest, char32_t c, bool letter_before, bool plain,
                  TextBuilder& out) {
  if (c == 0x130) {
    out.append_char('i', plain);
    out.append_char(0x307, plain);
    return;
  }
  if (c == 0x3A3) {
    bool letter_after = false;
    for (size_t i = 0; i < rest.size();) {
      const char32_t next = next_char(rest, i);
      if (case_ignorable(next)) continue;
      letter_after = is_cased(next);
      break;
    }
    out.append_char(letter_before && !letter_after ? 0x3C2 : 0x3C3, plain);
    return;
  }
  out.append_char(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), plain);
}

bool begins_filter_word(char32_t c) {
  return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

}  // namespace

bool valid_utf8(std::string_view bytes) {
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(bytes.data());
  const auto size = static_cast<utf8proc_ssize_t>(bytes.size());
  for (utf8proc_ssize_t i = 0; i < size;) {
    if (data[i] < 0x80) {
      ++i;
      continue;
    }
    utf8proc_int32_t code = -1;
    const utf8proc_ssize_t used = utf8proc_iterate(data + i, size - i, &code);
    if (used <= 0) return false;
    i += used;
  }
  return true;
}

char32_t next_char(std::string_view bytes, size_t& position) {
  const auto lead = static_cast<unsigned char>(bytes[position]);
  if (lead < 0x80) {
    ++position;
    return lead;
  }
  utf8proc_int32_t code = -1;
  const utf8proc_ssize_t used =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()) + position,
                       static_cast<utf8proc_ssize_t>(bytes.size() - position), &code);
  if (used <= 0) {
    ++position;
    return 0xFFFD;
  }
  position += static_cast<size_t>(used);
  return static_cast<char32_t>(code);
}

void append_utf8(char32_t c, std::string& out) {
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t used = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(used));
}

int64_t char_count(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_upper(char32_t c) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0; }

bool is_lower(char32_t c) { return utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0; }

bool is_cased(char32_t c) {
  return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT;
}

Text change_case(const Text& text, CaseChange change) {
  TextBuilder out;
  PlainCursor cursor(text);
  const std::string_view bytes = text.bytes;
  bool word_start = true;      // the next letter begins a word
  bool letter_before = false;  // for the final sigma
  for (size_t i = 0; i < bytes.size();) {
    const bool plain = cursor.at(i);
    const char32_t c = next_char(bytes, i);
    const bool title = change != CaseChange::kUpper && change != CaseChange::kLower;
    if (change == CaseChange::kUpper || (title && word_start)) {
      append_upper(c, title && change != CaseChange::kFilterTitle, plain, out);
    } else {
      append_lower(bytes.substr(i), c, letter_before, plain, out);
    }
    if (!case_ignorable(c)) letter_before = is_cased(c);
    if (change == CaseChange::kCapitalize) word_start = false;
    if (change == CaseChange::kTitle) word_start = !is_cased(c);
    if (change == CaseChange::kFilterTitle) word_start = begins_filter_word(c);
  }
  return out.take();
}

Text escape_html(const Text& text) {
  TextBuilder out;
  PlainCursor cursor(text);
  for (size_t i = 0; i < text.bytes.size(); ++i) {
    const char c = text.bytes[i];
    const bool plain = cursor.at(i);
    switch (c) {
      case '&':
        out.append("&amp;", plain);
        break;
      case '<':
        out.append("&lt;", plain);
        break;
      case '>':
        out.append("&gt;", plain);
        break;
      case '\'':
        out.append("&#39;", plain);
        break;
      case '"':
        out.append("&#34;", plain);
        break;
      default:
        out.append(std::string_view(&c, 1), plain);
    }
  }
  return out.take();
}

}  // namespace coppice::jinja
