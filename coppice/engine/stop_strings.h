// Finds the first of several stop strings in a text that arrives in pieces.
//
// Text that may be the start of a stop string is held back; everything before it is released at
// once, so what is released never holds a part of the stop that is found later. The stop that is
// complete first wins; of several complete at the same byte, the longest. Bytes are compared, so a
// stop may begin or end inside what one token wrote, or inside a multi-byte character.
//
// Time is linear in the text for a fixed set of stops, whatever the texts: one prefix automaton
// (Knuth, Morris and Pratt) per stop. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

class StopStrings final {
 public:
  // Throws kInvalidArgument for an empty stop.
  explicit StopStrings(const std::vector<std::string>& stops);

  // The text released by this piece. Nothing more is released once stopped().
  std::string push(std::string_view piece);
  // The text ended without a stop: what was held back. Empty once stopped().
  std::string finish();

  bool stopped() const { return stopped_; }

 private:
  struct Automaton {
    std::string pattern;
    std::vector<int32_t> fallback;  // longest proper border of pattern[0..i]
    int32_t matched = 0;            // bytes of `pattern` that the text ends with
  };

  void advance(char byte);
  std::size_t longest_complete() const;  // bytes of the longest stop the text ends with
  std::size_t longest_started() const;   // bytes of the longest start of a stop at the text's end

  std::vector<Automaton> automata_;
  std::string held_;  // the end of the text that is not released yet
  bool stopped_ = false;
};

}  // namespace coppice
