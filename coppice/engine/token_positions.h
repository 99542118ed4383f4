// Rotary positions of the tokens of a sequence that holds pictures.
//
// Text counts on by one in all three parts. A picture whose tokens stand in a grid begins where the
// text has got to, at p; its token in row y and column x stands at (p, p + y, p + x), and the text
// goes on at p + max(height, width). So the time part of all tokens of a picture is p: the
// sequence's next rotary position (KvCache::next_rotary) stays there until the picture is read.
// Source: arXiv:2409.12191, section 2.1; pictures, not films.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/engine/image_span.h"

namespace coppice {

struct TokenPositions {
  std::vector<int32_t> time;           // [T]
  std::vector<int32_t> height, width;  // [T]; empty where no token stands in a grid
  int64_t next = 0;                    // time of the token that follows
  int64_t reach = 0;                   // one more than the highest position

  bool three_part() const { return !height.empty(); }
};

// Of `count` tokens from the sequence's token `first` on, whose rotary position is `next_rotary`.
// REQUIRES: `images` are in order.
TokenPositions token_positions(std::span<const ImageSpan> images, int64_t first, int64_t count,
                               int64_t next_rotary);

}  // namespace coppice
