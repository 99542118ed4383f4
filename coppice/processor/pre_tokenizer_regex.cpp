#define PCRE2_CODE_UNIT_WIDTH 8
#include "coppice/processor/pre_tokenizer_regex.h"

#include <pcre2.h>

#include <array>

#include "coppice/core/error.h"

namespace coppice {
namespace {

constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackLimit = 64 << 20;
constexpr uint32_t kHeapLimitKib = 256 << 10;
constexpr uint32_t kMatchLimit = 20'000'000;

template <typename T, void (*Free)(T*)>
struct Freer {
  void operator()(T* p) const { Free(p); }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code, pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data, pcre2_match_data_free>>;
using Context =
    std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context, pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack, pcre2_jit_stack_free>>;

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// Spells \s and \S out, outside and (for \s) inside brackets.
std::string with_exact_blanks(std::string_view pattern) {
  constexpr std::string_view kBlanks =
      R"(\t-\r\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  std::string out;
  bool in_brackets = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        out += in_brackets ? std::string(kBlanks) : "[" + std::string(kBlanks) + "]";
      } else if (escaped == 'S' && !in_brackets) {
        out += "[^" + std::string(kBlanks) + "]";
      } else {
        out += c;
        out += escaped;
      }
      continue;
    }
    if (c == '[') in_brackets = true;
    if (c == ']') in_brackets = false;
    out += c;
  }
  return out;
}

}  // namespace

struct RegexSplitter::Compiled {
  Code code;
  bool jit = false;
};

RegexSplitter::RegexSplitter(std::string_view pattern)
    : pattern_(pattern), compiled_(std::make_unique<Compiled>()) {
  const std::string exact = with_exact_blanks(pattern);
  int error = 0;
  PCRE2_SIZE where = 0;
  compiled_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(exact.data()), exact.size(),
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error,
                                      &where, nullptr));
  if (compiled_->code == nullptr) {
    fail_argument("the tokenizer's split pattern is not a regular expression: {} at byte {} of {}",
                  error_text(error), where, exact);
  }
  compiled_->jit = pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}

RegexSplitter::~RegexSplitter() = default;

void RegexSplitter::split(std::string_view text, size_t offset, std::vector<size_t>& ends) const {
  const pcre2_code* code = compiled_->code.get();
  const MatchData match(pcre2_match_data_create_from_pattern(code, nullptr));
  const Context context(pcre2_match_context_create(nullptr));
  const JitStack stack(pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr));
  if (match == nullptr || context == nullptr || stack == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_depth_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  pcre2_jit_stack_assign(context.get(), nullptr, stack.get());

  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;  // end of the last piece
  for (size_t from = 0; from < text.size();) {
    // The text is valid and `from` stands at a character.
    uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int found = pcre2_match(code, subject, text.size(), from, options, match.get(), context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      options |= PCRE2_NO_JIT;  // keeps its state on the heap
      found = pcre2_match(code, subject, text.size(), from, options, match.get(), context.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      fail_argument("splitting {} bytes of text by the tokenizer's pattern {}: {}", text.size(),
                    pattern_, error_text(found));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    if (range[1] <= done) break;  // \K may move a match backwards
    if (range[0] > done) ends.push_back(offset + range[0]);
    ends.push_back(offset + range[1]);
    done = from = range[1];
  }
  if (done < text.size()) ends.push_back(offset + text.size());
}

}  // namespace coppice
