#include "coppice/processor/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "coppice/core/error.h"

namespace coppice {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

struct ClassRange {
  uint32_t first, last;
  CharClass value;
};

// Letters and numbers of Unicode 15.1 and 16, which utf8proc 2.8 (Unicode 15.0) does not know.
constexpr ClassRange kNewer[] = {
    {0x1C89, 0x1C8A, CharClass::kLetter},   {0xA7CB, 0xA7CD, CharClass::kLetter},
    {0xA7DA, 0xA7DC, CharClass::kLetter},   {0x105C0, 0x105F3, CharClass::kLetter},
    {0x10D40, 0x10D49, CharClass::kNumber}, {0x10D4A, 0x10D65, CharClass::kLetter},
    {0x10D6F, 0x10D85, CharClass::kLetter}, {0x10EC2, 0x10EC4, CharClass::kLetter},
    {0x11380, 0x11389, CharClass::kLetter}, {0x1138B, 0x1138B, CharClass::kLetter},
    {0x1138E, 0x1138E, CharClass::kLetter}, {0x11390, 0x113B5, CharClass::kLetter},
    {0x113B7, 0x113B7, CharClass::kLetter}, {0x113D1, 0x113D1, CharClass::kLetter},
    {0x113D3, 0x113D3, CharClass::kLetter}, {0x116D0, 0x116E3, CharClass::kNumber},
    {0x11BC0, 0x11BE0, CharClass::kLetter}, {0x11BF0, 0x11BF9, CharClass::kNumber},
    {0x13460, 0x143FA, CharClass::kLetter}, {0x16100, 0x1611D, CharClass::kLetter},
    {0x16130, 0x16139, CharClass::kNumber}, {0x16D40, 0x16D6C, CharClass::kLetter},
    {0x16D70, 0x16D79, CharClass::kNumber}, {0x18CFF, 0x18CFF, CharClass::kLetter},
    {0x1CCF0, 0x1CCF9, CharClass::kNumber}, {0x1E5D0, 0x1E5ED, CharClass::kLetter},
    {0x1E5F0, 0x1E5F0, CharClass::kLetter}, {0x1E5F1, 0x1E5FA, CharClass::kNumber},
    {0x2EBF0, 0x2EE5D, CharClass::kLetter},
};

// White_Space, whole: no Unicode version since 6.3 changed it.
constexpr ClassRange kSpaces[] = {
    {0x09, 0x0D, CharClass::kSpace},     {0x20, 0x20, CharClass::kSpace},
    {0x85, 0x85, CharClass::kSpace},     {0xA0, 0xA0, CharClass::kSpace},
    {0x1680, 0x1680, CharClass::kSpace}, {0x2000, 0x200A, CharClass::kSpace},
    {0x2028, 0x2029, CharClass::kSpace}, {0x202F, 0x202F, CharClass::kSpace},
    {0x205F, 0x205F, CharClass::kSpace}, {0x3000, 0x3000, CharClass::kSpace},
    {'\n', '\n', CharClass::kNewline},   {'\r', '\r', CharClass::kNewline},
};

CharClass class_by_category(utf8proc_category_t category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    default:
      return CharClass::kOther;
  }
}

std::vector<CharClass> make_class_table() {
  std::vector<CharClass> table(kCodePoints);
  for (uint32_t c = 0; c < kCodePoints; ++c) {
    table[c] = class_by_category(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
  }
  auto paint = [&](const auto& ranges) {
    for (const ClassRange& r : ranges) std::fill_n(&table[r.first], r.last - r.first + 1, r.value);
  };
  paint(kNewer);
  paint(kSpaces);
  return table;
}

const CharClass* class_table() {
  static const std::vector<CharClass> table = make_class_table();
  return table.data();
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

// Canonical composition of one chunk, through its full decomposition in canonical order.
void compose_chunk(std::string& out, std::string_view chunk) {
  std::vector<utf8proc_int32_t> points;
  points.reserve(chunk.size());
  std::array<utf8proc_int32_t, 32> one;
  int boundary = 0;
  for (size_t at = 0; at < chunk.size();) {
    const CodePoint c = code_point_at(chunk, at);
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), one.data(),
                                           one.size(), UTF8PROC_DECOMPOSE, &boundary);
    COPPICE_CHECK(n > 0 && n <= static_cast<utf8proc_ssize_t>(one.size()),
                  "decomposition of U+{:04X} gave {}", c.value, n);
    points.insert(points.end(), one.begin(), one.begin() + n);
    at += c.bytes;
  }
  auto combining = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto it = points.begin(); it != points.end();) {
    if (combining(*it) == 0) {
      ++it;
      continue;
    }
    auto end = std::find_if(it, points.end(), [&](auto c) { return combining(c) == 0; });
    std::stable_sort(it, end, [&](auto a, auto b) { return combining(a) < combining(b); });
    it = end;
  }
  const auto kept =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  COPPICE_CHECK(kept >= 0, "composition failed: {}", utf8proc_errmsg(kept));
  for (utf8proc_ssize_t i = 0; i < kept; ++i) append_utf8(out, static_cast<uint32_t>(points[i]));
}

}  // namespace

CharClass char_class(uint32_t code_point) {
  return code_point < kCodePoints ? class_table()[code_point] : CharClass::kOther;
}

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(at + 1) & 0x3F), 2};
  if (lead < 0xF0) {
    return {(lead & 0x0F) << 12 | (byte(at + 1) & 0x3F) << 6 | (byte(at + 2) & 0x3F), 3};
  }
  return {(lead & 0x07) << 18 | (byte(at + 1) & 0x3F) << 12 | (byte(at + 2) & 0x3F) << 6 |
              (byte(at + 3) & 0x3F),
          4};
}

int utf8_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte is bounded more tightly: no over-long form, surrogate or value above U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return 0;
    const bool good = i == 1 ? byte(1) >= low && byte(1) <= high : (byte(i) & 0xC0) == 0x80;
    if (!good) return -i;
  }
  return length;
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (is_ascii(text[at])) {
      ++at;
      continue;
    }
    const int n = utf8_sequence(text.substr(at, 4));
    if (n <= 0) return false;
    at += n;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  Utf8Assembler assembler;
  assembler.push(text, out);
  assembler.flush(out);
  return out;
}

void append_utf8(std::string& out, uint32_t c) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

void append_nfc(std::string& out, std::string_view text) {
  const auto after = [&](size_t from, auto wanted) {
    return static_cast<size_t>(std::find_if(text.begin() + from, text.end(), wanted) -
                               text.begin());
  };
  const auto not_ascii = [](char c) { return !is_ascii(c); };
  for (size_t at = 0; at < text.size();) {
    const size_t foreign = after(at, not_ascii);
    if (foreign == text.size()) {
      out.append(text.substr(at));
      return;
    }
    // The last ASCII character may be the base of what follows.
    const size_t start = foreign > at ? foreign - 1 : foreign;
    const size_t end = after(foreign, is_ascii);
    out.append(text.substr(at, start - at));
    compose_chunk(out, text.substr(start, end - start));
    at = end;
  }
}

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  size_t at = 0;
  while (!pending_.empty() && at < bytes.size()) {
    pending_.push_back(bytes[at++]);
    const int n = utf8_sequence(pending_);
    if (n == 0) continue;
    if (n > 0) {
      out.append(pending_);
    } else {
      out.append(kReplacementCharacter);
      --at;  // the byte that broke the sequence starts the next one
    }
    pending_.clear();
  }
  while (at < bytes.size()) {
    size_t end = at;
    int n = 1;
    while (end < bytes.size() && (n = utf8_sequence(bytes.substr(end, 4))) > 0) end += n;
    out.append(bytes.substr(at, end - at));
    at = end;
    if (at == bytes.size()) break;
    if (n == 0) {
      pending_ = bytes.substr(at);
      break;
    }
    out.append(kReplacementCharacter);
    at += static_cast<size_t>(-n);
  }
}

void Utf8Assembler::flush(std::string& out) {
  if (!pending_.empty()) out.append(kReplacementCharacter);
  pending_.clear();
}

}  // namespace coppice
