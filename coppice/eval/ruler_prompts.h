// Synthetic tasks of RULER's family (Hsieh et al. 2024, arXiv 2404.06654), in wordings of our own.
//
//   single          one key with a number in real text; the number is asked for
//   multi-key       four keys, one of which is asked for
//   multi-value     one key with four numbers, all asked for
//   multi-query     four keys, all asked for
//   variables       a variable with a value and four that copy it, each the one before; all that
//                   have the value are asked for
//   common-words    a list in which ten words stand 30 times, the others 3 times
//   frequent-words  made-up words, as often as a zeta distribution with exponent 2 says; the three
//                   most frequent are asked for
//
// The first five stand between the sentences of real text, the other two are made of words alone
// (those of common-words are taken from the text).
//
// Differs from the paper: no worked example in front of common-words, whose words are parted by
// commas and not numbered; no filler among made-up words; several wordings of needles; an answer
// has to name a reference as a whole word.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/rng.h"
#include "coppice/eval/asking.h"
#include "coppice/eval/haystack.h"

namespace coppice {

std::span<const std::string_view> ruler_kinds();
// Of an answer, at most. Throws kInvalidArgument for an unknown kind.
int64_t ruler_answer_tokens(std::string_view kind);

struct RulerPrompt {
  Reading reading;                      // one question
  std::vector<std::string> references;  // what the answer should name
};

// What a trial consists of before its length is known: facts, wordings, the place in the text.
// Stateless but for the haystack's counts; the same draw gives the same prompt for a size.
class RulerDraw final {
 public:
  // `haystack` must outlive it. Throws kInvalidArgument for an unknown kind, or a text without
  // enough words.
  RulerDraw(std::string_view kind, uint64_t seed, Haystack& haystack, const Tokenizer& tokenizer);

  // The prompt with `size` units of what makes it long: sentences of text, list words that are not
  // common, made-up words in all.
  RulerPrompt prompt(int64_t size) const;
  int64_t least() const;  // the smallest size that makes sense
  int64_t most() const;   // the largest size there is material for

 private:
  RulerPrompt in_text(int64_t size) const;
  RulerPrompt common_words(int64_t size) const;
  RulerPrompt frequent_words(int64_t size) const;
  void draw_needles(Rng& rng);
  void draw_variables(Rng& rng);

  std::string kind_;
  uint64_t seed_;
  Haystack& haystack_;
  const Tokenizer& tokenizer_;
  int64_t first_ = 0;             // sentence
  std::vector<Planted> planted_;  // by depth
  std::string question_, opening_;
  std::vector<std::string> references_;
  std::vector<std::string> words_;  // of lists: those asked for, then the others
};

// The share of references that `answer` names as whole words, whatever their capitals.
double ruler_score(std::string_view answer, std::span<const std::string> references);

}  // namespace coppice
