// Cutting text into the words that byte-pair merging never crosses.
//
// The splits of the known families are hand-written scanners over character classes: linear time,
// no recursion, whatever the input. Each equals the published regular expression it is named for
// (pre_tokenizer_test.cpp compares them). Other expressions run on PCRE2 (pre_tokenizer_regex.h).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

class RegexSplitter;

// The splits with a scanner of their own.
enum class KnownSplit {
  kGpt2,    // contractions | ?letters | ?numbers | ?others | blanks (the last joins the next word)
  kQwen2,   // as llama-3, each number character alone
  kLlama3,  // letters after any one non-newline, numbers by three, others with trailing newlines
  kDigits,  // each number character alone, everything else whole
};

// The regular expression that `split` equals, as tokenizer.json files write it.
std::string_view split_pattern(KnownSplit split);

// A sequence of splits, each of which cuts the pieces of the one before.
// Immutable after building; split() is thread-safe.
class PreTokenizer final {
 public:
  PreTokenizer();
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  void add(KnownSplit split);
  // A pattern equal to a known one gets its scanner. Throws kInvalidArgument if it does not
  // compile.
  void add_pattern(std::string_view pattern);

  // The splits of a GGUF `tokenizer.ggml.pre` name. Throws kInvalidArgument for a missing (empty)
  // or unknown name: a wrong split gives other ids without any error.
  static PreTokenizer from_gguf_name(std::string_view name);

  // The ends of the pieces, ascending, the last being text.size(); empty for an empty text.
  // REQUIRES: text is valid UTF-8. Throws kInvalidArgument when a foreign expression exceeds
  // PCRE2's limits on this text.
  void split(std::string_view text, std::vector<size_t>& ends) const;

 private:
  struct Step {
    KnownSplit known;
    std::unique_ptr<RegexSplitter> regex;  // null for a known split
  };
  std::vector<Step> steps_;
};

}  // namespace coppice
