#include "coppice/processor/pre_tokenizer.h"

#include <array>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/processor/pre_tokenizer_regex.h"
#include "coppice/processor/unicode.h"

namespace coppice {
namespace {

// Walks valid UTF-8 by characters and their classes.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  struct Character {
    uint32_t value = 0;
    uint32_t bytes = 0;  // 0 at the end of the text
    CharClass kind = CharClass::kOther;
    bool is(CharClass c) const { return bytes != 0 && kind == c; }
    bool is_blank() const { return is(CharClass::kSpace) || is(CharClass::kNewline); }
    bool is_symbol() const { return is(CharClass::kOther); }
  };
  Character at(size_t i) const {
    if (i >= text_.size()) return {};
    const CodePoint c = code_point_at(text_, i);
    return {c.value, c.bytes, char_class(c.value)};
  }
  // The end of the run of characters from `i` on that satisfy `wanted`, at most `limit` of them.
  template <typename Wanted>
  size_t run(size_t i, Wanted wanted, size_t limit = static_cast<size_t>(-1)) const {
    for (Character c = at(i); limit > 0 && c.bytes != 0 && wanted(c); c = at(i), --limit) {
      i += c.bytes;
    }
    return i;
  }
  size_t size() const { return text_.size(); }

 private:
  std::string_view text_;
};

using Character = Cursor::Character;

bool is_letter(const Character& c) { return c.is(CharClass::kLetter); }
bool is_number(const Character& c) { return c.is(CharClass::kNumber); }
bool is_symbol(const Character& c) { return c.is_symbol(); }

// 's 't 're 've 'm 'll 'd at `i`: the end, or `i` when there is none. Without regard to case, the
// long s (U+017F) counts as an s.
size_t contraction(const Cursor& text, size_t i, bool any_case) {
  if (text.at(i).value != '\'') return i;
  const auto fold = [&](const Character& c) -> uint32_t {
    if (any_case && c.value >= 'A' && c.value <= 'Z') return c.value + ('a' - 'A');
    return any_case && c.value == 0x17F ? 's' : c.value;
  };
  const Character first = text.at(i + 1);
  if (first.bytes == 0) return i;
  const size_t after_first = i + 1 + first.bytes;
  const uint32_t a = fold(first);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return after_first;
  const Character second = text.at(after_first);
  const uint32_t b = fold(second);
  const bool pair = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
  return pair && second.bytes != 0 ? after_first + second.bytes : i;
}

struct BlankRun {
  size_t end;            // of the run
  size_t last;           // start of its last character
  size_t after_newline;  // end of its last newline character; 0 when it has none
};

BlankRun blank_run(const Cursor& text, size_t i) {
  BlankRun run{i, i, 0};
  for (Character c = text.at(i); c.is_blank(); c = text.at(run.end)) {
    run.last = run.end;
    run.end += c.bytes;
    if (c.is(CharClass::kNewline)) run.after_newline = run.end;
  }
  return run;
}

// \s+(?!\S)|\s+ : all blanks but the last, which belongs to the word that follows.
size_t blanks_before_word(const Cursor& text, size_t i, const BlankRun& run) {
  return run.end == text.size() || run.last == i ? run.end : run.last;
}

size_t gpt2_piece(const Cursor& text, size_t i) {
  if (const size_t end = contraction(text, i, false); end > i) return end;
  Character c = text.at(i);
  size_t start = i;
  if (c.value == ' ') {
    start = i + 1;
    c = text.at(start);
  }
  if (is_letter(c)) return text.run(start, is_letter);
  if (is_number(c)) return text.run(start, is_number);
  if (is_symbol(c)) return text.run(start, is_symbol);
  return blanks_before_word(text, i, blank_run(text, i));
}

size_t llama3_piece(const Cursor& text, size_t i, size_t numbers) {
  if (const size_t end = contraction(text, i, true); end > i) return end;
  const Character c = text.at(i);
  if (is_letter(c)) return text.run(i, is_letter);
  if (is_number(c)) return text.run(i, is_number, numbers);
  const size_t next = i + c.bytes;
  if (!c.is(CharClass::kNewline) && is_letter(text.at(next))) return text.run(next, is_letter);
  if (is_symbol(c) || (c.value == ' ' && is_symbol(text.at(next)))) {
    const size_t symbols = text.run(next, is_symbol);
    return text.run(symbols, [](const Character& x) { return x.is(CharClass::kNewline); });
  }
  const BlankRun run = blank_run(text, i);
  return run.after_newline != 0 ? run.after_newline : blanks_before_word(text, i, run);
}

size_t digits_piece(const Cursor& text, size_t i) {
  const Character c = text.at(i);
  if (is_number(c)) return i + c.bytes;
  return text.run(i, [](const Character& x) { return !is_number(x); });
}

size_t known_piece(KnownSplit split, const Cursor& text, size_t i) {
  switch (split) {
    case KnownSplit::kGpt2:
      return gpt2_piece(text, i);
    case KnownSplit::kQwen2:
      return llama3_piece(text, i, 1);
    case KnownSplit::kLlama3:
      return llama3_piece(text, i, 3);
    case KnownSplit::kDigits:
      return digits_piece(text, i);
  }
  return text.size();
}

struct GgufName {
  std::string_view name;
  KnownSplit split;
  bool digits_first;
};

constexpr GgufName kGgufNames[] = {
    {"gpt-2", KnownSplit::kGpt2, false},       {"smollm", KnownSplit::kGpt2, true},
    {"qwen2", KnownSplit::kQwen2, false},      {"deepseek-r1-qwen", KnownSplit::kQwen2, false},
    {"llama-bpe", KnownSplit::kLlama3, false}, {"llama3", KnownSplit::kLlama3, false},
    {"llama-v3", KnownSplit::kLlama3, false},
};

std::string known_gguf_names() {
  std::string names;
  for (const GgufName& known : kGgufNames) {
    if (!names.empty()) names += ", ";
    names += known.name;
  }
  return names;
}

}  // namespace

std::string_view split_pattern(KnownSplit split) {
  switch (split) {
    case KnownSplit::kGpt2:
      return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    case KnownSplit::kQwen2:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+)"
             R"([\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case KnownSplit::kLlama3:
      return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| )"
             R"(?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    case KnownSplit::kDigits:
      return R"(\p{N})";
  }
  return {};
}

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

void PreTokenizer::add(KnownSplit split) { steps_.push_back({split, nullptr}); }

void PreTokenizer::add_pattern(std::string_view pattern) {
  for (KnownSplit known :
       {KnownSplit::kGpt2, KnownSplit::kQwen2, KnownSplit::kLlama3, KnownSplit::kDigits}) {
    if (pattern == split_pattern(known)) return add(known);
  }
  steps_.push_back({KnownSplit::kGpt2, std::make_unique<RegexSplitter>(pattern)});
}

PreTokenizer PreTokenizer::from_gguf_name(std::string_view name) {
  PreTokenizer result;
  for (const GgufName& known : kGgufNames) {
    if (known.name != name) continue;
    if (known.digits_first) result.add(KnownSplit::kDigits);
    result.add(known.split);
    return result;
  }
  if (name.empty()) {
    fail_argument(
        "the GGUF file does not say how its vocabulary splits text: tokenizer.ggml.pre is missing; "
        "expected one of {}",
        known_gguf_names());
  }
  fail_argument("unknown pre-tokenizer \"{}\" in tokenizer.ggml.pre; expected one of {}", name,
                known_gguf_names());
}

void PreTokenizer::split(std::string_view text, std::vector<size_t>& ends) const {
  ends.clear();
  if (text.empty()) return;
  ends.push_back(text.size());
  std::vector<size_t> coarse;
  for (const Step& step : steps_) {
    std::swap(coarse, ends);
    ends.clear();
    size_t begin = 0;
    for (const size_t end : coarse) {
      const std::string_view piece = text.substr(begin, end - begin);
      if (step.regex != nullptr) {
        step.regex->split(piece, begin, ends);
      } else {
        const Cursor cursor(piece);
        for (size_t i = 0; i < piece.size();) {
          i = known_piece(step.known, cursor, i);
          ends.push_back(begin + i);
        }
      }
      begin = end;
    }
  }
}

}  // namespace coppice
