#include "coppice/eval/haystack.h"

#include <cctype>

#include "coppice/core/error.h"

namespace coppice {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Past the quotes and brackets that close at `at`, those of UTF-8 included.
std::size_t skip_closing(std::string_view text, std::size_t at) {
  constexpr std::string_view kWide[] = {"\xe2\x80\x99", "\xe2\x80\x9d", "\xc2\xbb"};  // ’ ” »
  for (;;) {
    if (at < text.size() && std::string_view("\"')]_*").find(text[at]) != std::string_view::npos) {
      ++at;
      continue;
    }
    bool wide = false;
    for (const std::string_view mark : kWide) {
      if (!text.substr(at).starts_with(mark)) continue;
      at += mark.size();
      wide = true;
    }
    if (!wide) return at;
  }
}

// "Mr.", "St.", "J.": a capital alone or before letters that are no vowels, whose point ends no
// sentence.
bool is_title(std::string_view text, std::size_t point) {
  std::size_t begin = point;
  while (begin > 0 && std::isalpha(static_cast<unsigned char>(text[begin - 1])) != 0) --begin;
  if (begin == point || text[begin] < 'A' || text[begin] > 'Z') return false;
  const std::string_view rest = text.substr(begin + 1, point - begin - 1);
  return rest.size() <= 2 && rest.find_first_of("aeiouy") == std::string_view::npos;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

std::vector<std::string_view> split_sentences(std::string_view text) {
  std::vector<std::string_view> sentences;
  std::size_t begin = 0, at = 0;
  const auto end_at = [&](std::size_t end) {
    while (end < text.size() && is_blank(text[end])) ++end;
    sentences.push_back(text.substr(begin, end - begin));
    begin = at = end;
  };
  while (at < text.size()) {
    const char c = text[at];
    if (c == '.' || c == '!' || c == '?') {
      const std::size_t next = skip_closing(text, at + 1);
      const bool title = c == '.' && is_title(text, at);
      if (next < text.size() && is_blank(text[next]) && !title) {
        end_at(next);
        continue;
      }
    } else if (c == '\n' && at + 1 < text.size() && text[at + 1] == '\n') {
      end_at(at);
      continue;
    }
    ++at;
  }
  if (begin < text.size()) sentences.push_back(text.substr(begin));
  return sentences;
}

std::string plant(std::span<const std::string_view> units, std::span<const int64_t> sizes,
                  std::span<const Planted> planted, std::vector<double>& found) {
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  found.assign(planted.size(), 1.0);
  std::vector<bool> placed(planted.size(), false);
  std::string text;
  int64_t before = 0;
  for (std::size_t unit = 0; unit <= units.size(); ++unit) {
    const double here = total == 0 ? 1.0 : static_cast<double>(before) / static_cast<double>(total);
    for (std::size_t i = 0; i < planted.size(); ++i) {
      if (placed[i] || (planted[i].depth > here && unit < units.size())) continue;
      placed[i] = true;
      found[i] = here;
      if (!text.empty() && !is_blank(text.back())) text += ' ';
      text += planted[i].sentence;
      text += ' ';
    }
    if (unit == units.size()) break;
    text += units[unit];
    before += sizes[unit];
  }
  return std::string(trim(text));
}

Haystack::Haystack(const std::vector<std::string>& passages) {
  for (const std::string& passage : passages) {
    const std::string_view inner = trim(passage);
    if (inner.empty()) continue;
    text_ += inner;
    text_ += "\n\n";
  }
  if (text_.empty()) fail_argument("evaluation: the files hold no text");
  sentences_ = split_sentences(text_);
  tokens_.assign(sentences_.size(), -1);
}

std::string_view Haystack::sentence(int64_t index) const {
  return sentences_[static_cast<std::size_t>(index) % sentences_.size()];
}

int64_t Haystack::tokens(int64_t index, const Tokenizer& tokenizer) {
  int32_t& count = tokens_[static_cast<std::size_t>(index) % tokens_.size()];
  if (count < 0)
    count =
        static_cast<int32_t>(tokenizer.encode(sentence(index), {.parse_special = false}).size());
  return count;
}

}  // namespace coppice
