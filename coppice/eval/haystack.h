// Real text as sentences, to hide facts between.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/processor/tokenizer.h"

namespace coppice {

// The sentences of `text`, blanks behind them included: joined they are the text. A sentence ends
// behind ".", "!" or "?" (closing quotes and brackets included) that a blank follows, other than
// the point of a title or an initial ("Mr.", "J."), or with an empty line.
std::vector<std::string_view> split_sentences(std::string_view text);

// A sentence to put in, and where: 0 is the beginning, 1 the end.
struct Planted {
  std::string sentence;
  double depth = 0.5;
};

// `units` joined with the planted sentences between them, each in front of the first unit that
// begins at or behind its depth, counted in `sizes` (of the units). Blanks at both ends are cut.
// found: where each stands, as a share of all sizes.
std::string plant(std::span<const std::string_view> units, std::span<const int64_t> sizes,
                  std::span<const Planted> planted, std::vector<double>& found);

class Haystack final {
 public:
  // Passages that follow each other. Throws kInvalidArgument when they hold no text.
  explicit Haystack(const std::vector<std::string>& passages);
  Haystack(const Haystack&) = delete;
  Haystack& operator=(const Haystack&) = delete;

  int64_t size() const { return static_cast<int64_t>(sentences_.size()); }
  // Of sentence `index` modulo size().
  std::string_view sentence(int64_t index) const;
  // Its tokens, counted apart; counted once. Not thread-safe.
  int64_t tokens(int64_t index, const Tokenizer& tokenizer);

 private:
  std::string text_;
  std::vector<std::string_view> sentences_;
  std::vector<int32_t> tokens_;  // -1: not counted yet
};

}  // namespace coppice
