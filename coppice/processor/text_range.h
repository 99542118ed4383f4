// Byte ranges of a text.
//
// Used to mark which bytes of a rendered prompt came from the user's data, so that the tokenizer
// never reads a control token there.
#pragma once

#include <cstdint>

namespace coppice {

// The bytes [begin, end) of a text. 0 <= begin <= end <= size of the text, in bytes (not
// characters). Lists of ranges are sorted by `begin` and do not overlap or touch.
struct TextRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const TextRange&) const = default;
};

}  // namespace coppice
