// A split by an arbitrary regular expression from a tokenizer.json, run by PCRE2.
//
// Matches and the gaps between them are pieces ("Isolated"). `\s` means White_Space as in the
// reference's engine (PCRE2 alone would add U+180E). Character classes follow PCRE2's Unicode
// version (14 in Debian 12). Matching never recurses on the C stack and its effort is bounded.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

class RegexSplitter final {
 public:
  // Throws kInvalidArgument when the pattern does not compile.
  explicit RegexSplitter(std::string_view pattern);
  ~RegexSplitter();

  // Appends `offset` + the end of each piece of `text`; the last is offset + text.size().
  // REQUIRES: text is valid UTF-8. Throws kInvalidArgument past the limits. Thread-safe.
  void split(std::string_view text, size_t offset, std::vector<size_t>& ends) const;

 private:
  struct Compiled;
  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace coppice
