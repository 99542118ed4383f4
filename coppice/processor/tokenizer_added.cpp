#include "coppice/processor/tokenizer_added.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "coppice/processor/unicode.h"

namespace coppice {
namespace {

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// The character that ends before `at`; an ill-formed one reads as U+FFFD.
uint32_t character_before(std::string_view text, size_t at, size_t& begin) {
  begin = at - 1;
  while (begin > 0 && at - begin < 4 && is_continuation(text[begin])) --begin;
  const std::string_view bytes = text.substr(begin, at - begin);
  if (utf8_sequence(bytes) == static_cast<int>(bytes.size()))
    return code_point_at(text, begin).value;
  begin = at - 1;
  return 0xFFFD;
}

uint32_t character_after(std::string_view text, size_t at, size_t& end) {
  const int n = utf8_sequence(text.substr(at, 4));
  end = at + static_cast<size_t>(std::max(n, 1));
  return n > 0 ? code_point_at(text, at).value : 0xFFFD;
}

bool is_blank(uint32_t c) {
  return char_class(c) == CharClass::kSpace || char_class(c) == CharClass::kNewline;
}

struct Range {
  uint32_t first, last;
};

bool in(std::span<const Range> ranges, uint32_t c) {
  const auto after = [](uint32_t value, const Range& r) { return value < r.first; };
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), c, after);
  return it != ranges.begin() && c <= std::prev(it)->last;
}

// Join controls, the symbols that Unicode calls alphabetic (letters in circles and squares), and
// the marks of Unicode 15.1 and 16, which utf8proc 2.8 does not know.
constexpr Range kMoreWord[] = {
    {0x897, 0x897},     {0x200C, 0x200D},   {0x24B6, 0x24E9},   {0x10D69, 0x10D6D},
    {0x10EFC, 0x10EFC}, {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5},
    {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2}, {0x113E1, 0x113E2},
    {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F}, {0x1E5EE, 0x1E5EF}, {0x1F130, 0x1F149},
    {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
};

// Whether a regex \w matches: alphabetic, a mark, a decimal digit, a connector or a join control.
bool is_word(uint32_t c) {
  if (char_class(c) == CharClass::kLetter) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_CN:  // newer digits have a class
      return char_class(c) == CharClass::kNumber || in(kMoreWord, c);
    default:
      return in(kMoreWord, c);
  }
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  size_t ignored = 0;
  return (begin == 0 || !is_word(character_before(text, begin, ignored))) &&
         (end == text.size() || !is_word(character_after(text, end, ignored)));
}

size_t blanks_back(std::string_view text, size_t at, size_t floor) {
  for (size_t begin = at; at > floor; at = begin) {
    if (!is_blank(character_before(text, at, begin))) break;
  }
  return std::max(at, floor);
}

size_t blanks_forward(std::string_view text, size_t at) {
  for (size_t end = at; at < text.size(); at = end) {
    if (!is_blank(character_after(text, at, end))) break;
  }
  return at;
}

}  // namespace

void AddedTokens::add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) return;
  if (nodes_.empty()) nodes_.emplace_back();
  uint32_t at = 0;
  for (const char c : pattern) {
    const auto byte = static_cast<uint8_t>(c);
    auto& children = nodes_[at].children;
    auto it = std::lower_bound(children.begin(), children.end(), std::pair(byte, uint32_t{0}));
    if (it == children.end() || it->first != byte) {
      const auto created = static_cast<uint32_t>(nodes_.size());
      children.insert(it, {byte, created});
      nodes_.emplace_back();
      at = created;
    } else {
      at = it->second;
    }
  }
  first_byte_[static_cast<uint8_t>(pattern[0])] = true;
  if (nodes_[at].token >= 0) return;
  nodes_[at].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

const AddedTokens::Node* AddedTokens::child(const Node& node, char byte) const {
  const auto wanted = static_cast<uint8_t>(byte);
  auto it =
      std::lower_bound(node.children.begin(), node.children.end(), std::pair(wanted, uint32_t{0}));
  return it == node.children.end() || it->first != wanted ? nullptr : &nodes_[it->second];
}

void AddedTokens::split(std::string_view text, std::span<const TextRange> plain, bool match_special,
                        std::vector<Piece>& pieces) const {
  size_t done = 0;
  size_t range = 0;  // the first plain range that ends after `at`
  for (size_t at = 0; !tokens_.empty() && at < text.size();) {
    if (!first_byte_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    while (range < plain.size() && (plain[range].end <= static_cast<int64_t>(at) ||
                                    plain[range].begin == plain[range].end)) {
      ++range;
    }
    const size_t trusted_end =
        range == plain.size()
            ? text.size()
            : std::min(text.size(), static_cast<size_t>(std::max<int64_t>(plain[range].begin, 0)));
    const AddedToken* found = nullptr;
    size_t end = at;
    const Node* node = &nodes_[0];
    for (size_t i = at; i < trusted_end && (node = child(*node, text[i])) != nullptr; ++i) {
      if (node->token < 0) continue;
      const AddedToken& token = tokens_[static_cast<size_t>(node->token)];
      if (token.special && !match_special) continue;
      found = &token;
      end = i + 1;
    }
    if (found == nullptr) {
      ++at;
      continue;
    }
    if (found->single_word && !stands_alone(text, at, end)) {
      at = end;
      continue;
    }
    const size_t begin = found->lstrip ? blanks_back(text, at, done) : at;
    if (found->rstrip) end = blanks_forward(text, end);
    if (begin > done) pieces.push_back({done, begin, -1});
    pieces.push_back({begin, end, found->id});
    done = at = end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), -1});
}

}  // namespace coppice
