// A picture's place in a sequence: what its tokens embed to in place of the vocabulary's rows.
//
// Places count from the start of the sequence, sessions included, so the parts of a prompt that is
// read in several requests may all carry all spans. The hash tells pictures apart that stand under
// equal tokens: whoever compares prompts compares it, too.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace coppice {

struct ImageSpan {
  int64_t begin = 0;   // of the first token
  int64_t tokens = 0;  // at least 1
  std::string hash;    // of the picture and of how it was encoded
  at::Tensor
      embeddings;  // [tokens, W] of ModelArgs::embedding_width; undefined once they were read
  // Of its tokens, row by row, for models with three-part positions; 0: they stand in a line.
  int64_t grid_height = 0;
  int64_t grid_width = 0;

  int64_t end() const { return begin + tokens; }
  bool has_grid() const { return grid_height > 0; }
  // Rotary positions that it takes up: the text behind it goes on so far from its beginning.
  int64_t extent() const { return has_grid() ? std::max(grid_height, grid_width) : tokens; }
  bool same_place(const ImageSpan& other) const {
    return begin == other.begin && tokens == other.tokens && hash == other.hash;
  }
};

// Whether the first `tokens` tokens of two sequences have the same pictures. A picture that begins
// within them counts whole. REQUIRES: both are in order.
bool same_images(std::span<const ImageSpan> a, std::span<const ImageSpan> b, int64_t tokens);

// Adds to `known`, the pictures of a sequence that has read `read` of its `total` tokens, those of
// a request. Throws kInvalidArgument for spans out of order, overlapping, outside the text, without
// embeddings of width `width`, or other than what was read in their place.
void add_images(std::vector<ImageSpan>& known, std::span<const ImageSpan> given, int64_t read,
                int64_t total, int64_t width);

}  // namespace coppice
