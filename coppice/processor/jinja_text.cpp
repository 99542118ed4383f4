#include "coppice/processor/jinja_text.h"

#include <algorithm>

namespace coppice::jinja {
namespace {

bool ascii_only(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool contains_char(std::string_view set, char32_t c) {
  for (size_t i = 0; i < set.size();) {
    if (next_char(set, i) == c) return true;
  }
  return false;
}

size_t previous_char(std::string_view bytes, size_t position) {
  do {
    --position;
  } while (position > 0 && (static_cast<unsigned char>(bytes[position]) & 0xC0) == 0x80);
  return position;
}

// Offsets of all characters, and the size at the end.
std::vector<size_t> char_offsets(std::string_view bytes) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < bytes.size();) {
    offsets.push_back(i);
    next_char(bytes, i);
  }
  offsets.push_back(bytes.size());
  return offsets;
}

std::vector<Text> split_on_space(const Text& text, int64_t max_split) {
  std::vector<Text> parts;
  const std::string_view bytes = text.bytes;
  size_t i = 0;
  while (i < bytes.size()) {
    size_t after = i;
    if (is_space(next_char(bytes, after))) {
      i = after;
      continue;
    }
    if (max_split >= 0 && static_cast<int64_t>(parts.size()) >= max_split) {
      parts.push_back(sub_text(text, i, bytes.size()));
      return parts;
    }
    size_t end = after;
    while (end < bytes.size()) {
      after = end;
      if (is_space(next_char(bytes, after))) break;
      end = after;
    }
    parts.push_back(sub_text(text, i, end));
    i = end;
  }
  return parts;
}

std::vector<Text> rsplit_on_space(const Text& text, int64_t max_split) {
  std::vector<Text> parts;
  const std::string_view bytes = text.bytes;
  size_t end = bytes.size();
  while (end > 0) {
    size_t begin = previous_char(bytes, end);
    size_t probe = begin;
    if (is_space(next_char(bytes, probe))) {
      end = begin;
      continue;
    }
    if (max_split >= 0 && static_cast<int64_t>(parts.size()) >= max_split) {
      parts.push_back(sub_text(text, 0, end));
      break;
    }
    while (begin > 0) {
      const size_t before = previous_char(bytes, begin);
      probe = before;
      if (is_space(next_char(bytes, probe))) break;
      begin = before;
    }
    parts.push_back(sub_text(text, begin, end));
    end = begin;
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

void TextBuilder::mark(size_t begin, size_t end) {
  if (begin >= end) return;
  auto& ranges = text_.plain;
  if (!ranges.empty() && ranges.back().end == static_cast<int64_t>(begin)) {
    ranges.back().end = static_cast<int64_t>(end);
  } else {
    ranges.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end)});
  }
}

void TextBuilder::append(std::string_view bytes, bool plain) {
  const size_t begin = text_.bytes.size();
  text_.bytes.append(bytes);
  if (plain) mark(begin, text_.bytes.size());
}

void TextBuilder::append(const Text& text, size_t begin, size_t end) {
  const size_t base = text_.bytes.size();
  text_.bytes.append(text.bytes, begin, end - begin);
  const auto first = std::partition_point(
      text.plain.begin(), text.plain.end(),
      [&](const TextRange& range) { return range.end <= static_cast<int64_t>(begin); });
  for (auto range = first; range != text.plain.end(); ++range) {
    const size_t from = std::max(static_cast<size_t>(range->begin), begin);
    const size_t to = std::min(static_cast<size_t>(range->end), end);
    if (from >= end) break;
    mark(base + (from - begin), base + (to - begin));
  }
}

void TextBuilder::append_char(char32_t c, bool plain) {
  const size_t begin = text_.bytes.size();
  append_utf8(c, text_.bytes);
  if (plain) mark(begin, text_.bytes.size());
}

bool PlainCursor::at(size_t offset) {
  const auto position = static_cast<int64_t>(offset);
  while (next_ < ranges_.size() && ranges_[next_].end <= position) ++next_;
  return next_ < ranges_.size() && ranges_[next_].begin <= position;
}

Text sub_text(const Text& text, size_t begin, size_t end) {
  TextBuilder out;
  out.append(text, begin, end);
  return out.take();
}

Text slice_text(const Text& text, std::optional<int64_t> start, std::optional<int64_t> stop,
                int64_t step) {
  const bool ascii = ascii_only(text.bytes);
  const std::vector<size_t> offsets = ascii ? std::vector<size_t>{} : char_offsets(text.bytes);
  const auto length = static_cast<int64_t>(ascii ? text.bytes.size() : offsets.size() - 1);
  const auto offset = [&](int64_t i) {
    return ascii ? static_cast<size_t>(i) : offsets[static_cast<size_t>(i)];
  };
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? length : length - 1;
  const auto bound = [&](std::optional<int64_t> value, int64_t absent) {
    if (!value) return absent;
    const int64_t index = *value < 0 ? *value + length : *value;
    return std::clamp(index, low, high);
  };
  const int64_t first = bound(start, step > 0 ? low : high);
  const int64_t last = bound(stop, step > 0 ? high : low);
  if (step == 1) return first < last ? sub_text(text, offset(first), offset(last)) : Text{};
  TextBuilder out;
  if (step > 0) {
    for (int64_t i = first; i < last;) {
      out.append(text, offset(i), offset(i + 1));
      if (step >= last - i) break;
      i += step;
    }
  } else {
    for (int64_t i = first; i > last;) {
      out.append(text, offset(i), offset(i + 1));
      if (step <= last - i) break;
      i += step;
    }
  }
  return out.take();
}

std::optional<Text> char_at(const Text& text, int64_t index) {
  const int64_t length = char_count(text.bytes);
  const int64_t wanted = index < 0 ? index + length : index;
  if (wanted < 0 || wanted >= length) return std::nullopt;
  return slice_text(text, wanted, wanted + 1, 1);
}

std::vector<Text> split_chars(const Text& text) {
  std::vector<Text> characters;
  for (size_t i = 0; i < text.bytes.size();) {
    const size_t begin = i;
    next_char(text.bytes, i);
    characters.push_back(sub_text(text, begin, i));
  }
  return characters;
}

Text strip_text(const Text& text, std::optional<std::string_view> characters, bool left,
                bool right) {
  const std::string_view bytes = text.bytes;
  const auto drop = [&](char32_t c) {
    return characters ? contains_char(*characters, c) : is_space(c);
  };
  size_t begin = 0;
  size_t end = bytes.size();
  while (left && begin < end) {
    size_t after = begin;
    if (!drop(next_char(bytes, after))) break;
    begin = after;
  }
  while (right && begin < end) {
    const size_t before = previous_char(bytes, end);
    size_t probe = before;
    if (!drop(next_char(bytes, probe))) break;
    end = before;
  }
  return sub_text(text, begin, end);
}

std::vector<Text> split_text(const Text& text, std::optional<std::string_view> separator,
                             int64_t max_split, bool from_right) {
  if (!separator) {
    return from_right ? rsplit_on_space(text, max_split) : split_on_space(text, max_split);
  }
  std::vector<Text> parts;
  const std::string_view bytes = text.bytes;
  const auto may_split = [&] {
    return max_split < 0 || static_cast<int64_t>(parts.size()) < max_split;
  };
  if (from_right) {
    size_t end = bytes.size();
    while (may_split() && end >= separator->size()) {
      const size_t found = bytes.substr(0, end).rfind(*separator);
      if (found == std::string_view::npos) break;
      parts.push_back(sub_text(text, found + separator->size(), end));
      end = found;
    }
    parts.push_back(sub_text(text, 0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  while (may_split()) {
    const size_t found = bytes.find(*separator, begin);
    if (found == std::string_view::npos) break;
    parts.push_back(sub_text(text, begin, found));
    begin = found + separator->size();
  }
  parts.push_back(sub_text(text, begin, bytes.size()));
  return parts;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  const std::string_view bytes = text.bytes;
  size_t begin = 0;
  for (size_t i = 0; i < bytes.size();) {
    const size_t at = i;
    const char32_t c = next_char(bytes, i);
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && i < bytes.size() && bytes[i] == '\n') ++i;
    lines.push_back(sub_text(text, begin, keep_ends ? i : at));
    begin = i;
  }
  if (begin < bytes.size()) lines.push_back(sub_text(text, begin, bytes.size()));
  return lines;
}

Text replace_text(const Text& text, std::string_view from, const Text& to, int64_t count) {
  TextBuilder out;
  const std::string_view bytes = text.bytes;
  int64_t left = count;
  size_t begin = 0;
  if (from.empty()) {
    while (left != 0) {
      out.append(to);
      if (left > 0) --left;
      if (begin == bytes.size()) return out.take();
      const size_t at = begin;
      next_char(bytes, begin);
      out.append(text, at, begin);
    }
  }
  while (left != 0) {
    const size_t found = bytes.find(from, begin);
    if (found == std::string_view::npos) break;
    out.append(text, begin, found);
    out.append(to);
    begin = found + from.size();
    if (left > 0) --left;
  }
  out.append(text, begin, bytes.size());
  return out.take();
}

}  // namespace coppice::jinja
