#include "coppice/processor/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_text.h"

namespace coppice::jinja {
namespace {

constexpr size_t kMaxSourceBytes = size_t{4} << 20;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// \r\n and \r become \n; one final newline is dropped.
std::string normalise(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer final {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) text_part();
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(std::string_view what) const {
    fail_argument("chat template, line {}: {}", line_, what);
  }

  bool starts(std::string_view text) const {
    return source_.substr(position_).substr(0, text.size()) == text;
  }

  void advance(size_t count) {
    const std::string_view part = source_.substr(position_, count);
    line_ += static_cast<int>(std::count(part.begin(), part.end(), '\n'));
    position_ += count;
  }

  void push(TokenKind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    token.line = line_;
    tokens_.push_back(std::move(token));
  }

  void skip_space() {
    while (position_ < source_.size()) {
      size_t after = position_;
      if (!is_space(next_char(source_, after))) return;
      advance(after - position_);
    }
  }

  // Data that stands before a tag which opens with `sign`. Where lstrip applies, white space
  // between the start of a line and the tag goes.
  std::string trim_before(std::string_view data, char sign, bool lstrip) const {
    Text text{std::string(data), {}, false};
    if (sign == '-') return strip_text(text, std::nullopt, false, true).bytes;
    if (sign == '+' || !lstrip) return text.bytes;
    const size_t line = data.rfind('\n') == std::string_view::npos ? 0 : data.rfind('\n') + 1;
    if (line == 0 && !line_starting_) return text.bytes;
    const Text rest{std::string(data.substr(line)), {}, false};
    if (strip_text(rest, std::nullopt, true, true).bytes.empty()) text.bytes.resize(line);
    return text.bytes;
  }

  char sign_at(size_t position) const {
    const char c = position < source_.size() ? source_[position] : '\0';
    return c == '-' || c == '+' ? c : '\0';
  }

  void text_part() {
    size_t open = position_;
    while (true) {
      open = source_.find('{', open);
      if (open == std::string_view::npos || open + 1 >= source_.size()) {
        open = source_.size();
        break;
      }
      const char next = source_[open + 1];
      if (next == '{' || next == '%' || next == '#') break;
      ++open;
    }
    const std::string_view data = source_.substr(position_, open - position_);
    if (open == source_.size()) {
      if (!data.empty()) push(TokenKind::kData, std::string(data));
      return advance(data.size());
    }
    const char kind = source_[open + 1];
    const char sign = sign_at(open + 2);
    std::string kept = trim_before(data, sign, kind != '{');
    if (!kept.empty()) push(TokenKind::kData, std::move(kept));
    advance(data.size() + 2 + (sign != '\0' ? 1 : 0));
    line_starting_ = false;
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      push(TokenKind::kVariableBegin, "");
      expression("}}", TokenKind::kVariableEnd);
    } else if (!raw_block()) {
      push(TokenKind::kBlockBegin, "");
      expression("%}", TokenKind::kBlockEnd);
    }
  }

  // Behind a closing "%}" or "#}": one newline goes, or all white space where the sign was "-".
  void close_tag(char sign) {
    if (sign == '-') {
      const size_t before = position_;
      skip_space();
      if (position_ > before) line_starting_ = source_[position_ - 1] == '\n';
    } else if (sign == '\0' && starts("\n")) {
      advance(1);
      line_starting_ = true;
    }
  }

  void comment() {
    const size_t end = source_.find("#}", position_);
    if (end == std::string_view::npos) error("missing end of comment tag");
    char sign = end > position_ ? source_[end - 1] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    advance(end + 2 - position_);
    close_tag(sign);
  }

  // Behind "{%": where this is a raw block, takes it all. Its own end tag obeys the same rules.
  bool raw_block() {
    const size_t saved = position_;
    const int saved_line = line_;
    const auto give_up = [&] {
      position_ = saved;
      line_ = saved_line;
      return false;
    };
    skip_space();
    if (!starts("raw") || (position_ + 3 < source_.size() && is_word(source_[position_ + 3]))) {
      return give_up();
    }
    advance(3);
    skip_space();
    const bool strip = starts("-%}");
    if (!strip && !starts("%}")) return give_up();
    advance(strip ? 3 : 2);
    if (strip) skip_space();
    const size_t begin = position_;
    for (size_t open = begin; (open = source_.find("{%", open)) != std::string_view::npos; ++open) {
      const char sign = sign_at(open + 2);
      position_ = open + 2 + (sign != '\0' ? 1 : 0);
      skip_space();
      if (!starts("endraw")) continue;
      position_ += 6;
      skip_space();
      const char end_sign = sign_at(position_);
      if (end_sign != '\0') ++position_;
      if (!starts("%}")) continue;
      position_ += 2;
      line_starting_ = false;
      std::string kept = trim_before(source_.substr(begin, open - begin), sign, true);
      const std::string_view all = source_.substr(0, position_);
      line_ = 1 + static_cast<int>(std::count(all.begin(), all.end(), '\n'));
      if (!kept.empty()) push(TokenKind::kData, std::move(kept));
      close_tag(end_sign);
      return true;
    }
    error("missing end of raw directive");
  }

  bool tag_end(std::string_view end, TokenKind kind) {
    if (!open_.empty()) return false;
    const char sign = sign_at(position_);
    const bool block = kind == TokenKind::kBlockEnd;
    if (sign == '+' && !block) return false;
    if (source_.substr(position_ + (sign != '\0' ? 1 : 0)).substr(0, 2) != end) return false;
    push(kind, "");
    advance(2 + (sign != '\0' ? 1 : 0));
    if (block || sign == '-') close_tag(sign);
    return true;
  }

  void expression(std::string_view end, TokenKind kind) {
    open_.clear();
    while (true) {
      skip_space();
      if (position_ >= source_.size()) {
        error(kind == TokenKind::kBlockEnd ? "a block tag is not closed, expected '%}'"
                                           : "a print tag is not closed, expected '}}'");
      }
      if (tag_end(end, kind)) return;
      const char c = source_[position_];
      if (is_digit(c)) {
        number();
      } else if (is_word(c)) {
        name();
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        operator_token();
      }
    }
  }

  void name() {
    size_t end = position_;
    while (end < source_.size() && is_word(source_[end])) ++end;
    push(TokenKind::kName, std::string(source_.substr(position_, end - position_)));
    advance(end - position_);
  }

  // The end of a run of digits with single "_" between them.
  size_t digits_end(size_t at, int base) const {
    const auto digit = [&](size_t i) {
      if (i >= source_.size()) return false;
      const char c = source_[i];
      if (base <= 10) return c >= '0' && c < '0' + base;
      return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    };
    while (true) {
      if (digit(at)) {
        ++at;
      } else if (at < source_.size() && source_[at] == '_' && digit(at + 1)) {
        at += 2;
      } else {
        return at;
      }
    }
  }

  void number() {
    Token token;
    token.line = line_;
    int base = 10;
    if (source_[position_] == '0' && position_ + 1 < source_.size()) {
      const char c = static_cast<char>(source_[position_ + 1] | 0x20);
      base = c == 'x' ? 16 : (c == 'o' ? 8 : (c == 'b' ? 2 : 10));
    }
    size_t end = base == 10 ? digits_end(position_, 10) : digits_end(position_ + 2, base);
    bool real = false;
    const bool member = !tokens_.empty() && tokens_.back().text == "." &&
                        tokens_.back().kind == TokenKind::kOperator;  // x.0.1 holds no float
    if (base == 10 && !member) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
        end = digits_end(end + 1, 10);
        real = true;
      }
      size_t exponent = end;
      if (exponent < source_.size() && (source_[exponent] | 0x20) == 'e') {
        ++exponent;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
          ++exponent;
        }
        if (exponent < source_.size() && is_digit(source_[exponent])) {
          end = digits_end(exponent, 10);
          real = true;
        }
      }
    }
    std::string digits(source_.substr(position_, end - position_));
    std::erase(digits, '_');
    const char* first = digits.data() + (base == 10 ? 0 : 2);
    const char* last = digits.data() + digits.size();
    const auto result = real ? std::from_chars(first, last, token.real)
                             : std::from_chars(first, last, token.integer, base);
    if (result.ec != std::errc{} || result.ptr != last || first == last) {
      error(fmt::format("the number {} is malformed or does not fit into 64 bits", digits));
    }
    token.kind = real ? TokenKind::kFloat : TokenKind::kInteger;
    tokens_.push_back(std::move(token));
    advance(end - position_);
  }

  void string(char quote) {
    std::string out;
    size_t i = position_ + 1;
    while (true) {
      if (i >= source_.size()) error("a string is not closed");
      const char c = source_[i];
      if (c == quote) break;
      ++i;
      if (c != '\\') {
        out.push_back(c);
      } else {
        if (i >= source_.size()) error("a string is not closed");
        escape(i, out);
      }
    }
    push(TokenKind::kString, std::move(out));
    advance(i + 1 - position_);
  }

  // The escape whose letter stands at `i`, which moves behind it.
  void escape(size_t& i, std::string& out) {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"";
    static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[i++];
    if (c == '\n') return;
    if (const size_t known = kLetters.find(c); known != std::string_view::npos) {
      out.push_back(kMeanings[known]);
      return;
    }
    size_t length = c == 'x' ? 2 : (c == 'u' ? 4 : (c == 'U' ? 8 : 0));
    int base = 16;
    if (c >= '0' && c <= '7') {
      --i;
      base = 8;
      length = 1;
      while (length < 3 && i + length < source_.size() && source_[i + length] >= '0' &&
             source_[i + length] <= '7') {
        ++length;
      }
    }
    if (length == 0) {
      if (c == 'N') error("named characters (\\N{...}) are not supported");
      out.push_back('\\');
      out.push_back(c);
      return;
    }
    const std::string_view digits = source_.substr(i, length);
    uint32_t code = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    if (digits.size() != length || result.ec != std::errc{} ||
        result.ptr != digits.data() + length || code > 0x10FFFF || surrogate) {
      error(fmt::format("malformed escape \\{} in a string", c));
    }
    append_utf8(code, out);
    i += length;
  }

  void operator_token() {
    static constexpr std::array<std::string_view, 6> kLong = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kShort = "+-*/%~[](){}><=.:|,";
    for (const std::string_view text : kLong) {
      if (!starts(text)) continue;
      push(TokenKind::kOperator, std::string(text));
      advance(text.size());
      return;
    }
    const char c = source_[position_];
    if (kShort.find(c) == std::string_view::npos) {
      error(fmt::format("unexpected character '{}'", c));
    }
    if (c == '(' || c == '[' || c == '{') {
      open_.push_back(c == '(' ? ')' : (c == '[' ? ']' : '}'));
    } else if (c == ')' || c == ']' || c == '}') {
      if (open_.empty()) error(fmt::format("unexpected '{}'", c));
      if (open_.back() != c) {
        error(fmt::format("unexpected '{}', expected '{}'", c, open_.back()));
      }
      open_.pop_back();
    }
    push(TokenKind::kOperator, std::string(1, c));
    advance(1);
  }

  std::string_view source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::string open_;  // brackets that wait for their end
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    fail_argument("chat template: {} bytes, expected at most {}", source.size(), kMaxSourceBytes);
  }
  if (!valid_utf8(source)) fail_argument("chat template: not valid UTF-8");
  const std::string text = normalise(source);
  return Lexer(text).run();
}

}  // namespace coppice::jinja
