// What a vocabulary does to text before splitting it: NFC, or SentencePiece's blanks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coppice/processor/text_range.h"

namespace coppice {

class TextNormalizer final {
 public:
  void add_nfc() { steps_.push_back({Step::kNfc, {}, {}}); }
  void add_prepend(std::string text) { steps_.push_back({Step::kPrepend, {}, std::move(text)}); }
  // Replaces each `from`, which must not be empty, by `to`.
  void add_replace(std::string from, std::string to) {
    steps_.push_back({Step::kReplace, std::move(from), std::move(to)});
  }
  bool empty() const { return steps_.empty(); }

  // REQUIRES: text is valid UTF-8. An empty text stays empty.
  std::string apply(std::string_view text) const;
  // Also carries the plain ranges of `text` over to the result. A range grows to whole characters
  // and to the combining sequences it touches.
  std::string apply(std::string_view text, std::vector<TextRange>& plain) const;

 private:
  struct Step {
    enum Kind { kNfc, kPrepend, kReplace } kind;
    std::string from, to;
  };
  static std::string run(const Step& step, std::string_view text, std::vector<TextRange>* plain);

  std::vector<Step> steps_;
};

}  // namespace coppice
