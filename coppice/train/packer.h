// Rows of training: pieces of documents put together, best fit, until a row is full.
//
// Pieces are taken from the stream in windows; within a window the longest piece goes first, each
// into the row where the least room is left over. Documents stay apart: offsets say where each
// begins, targets never cross a border, and no padding exists: a row may be shorter than `length`.
// Rows of a window come in an order drawn from the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/train/document_stream.h"

namespace coppice {

// Predictions without loss have this target.
inline constexpr int64_t kNoTarget = -100;

struct Row {
  std::vector<int64_t> tokens;      // [N]
  std::vector<int64_t> targets;     // [N]: the next token of the same document, or kNoTarget
  std::vector<int64_t> cu_seqlens;  // [documents + 1], from 0 to N
  std::vector<std::string> labels;  // [documents]

  int64_t num_targets() const;
};

// Adds the documents of `more` behind those of `row`.
void append_row(Row& row, const Row& more);

// Pieces into rows of at most `length` tokens, in the order that packing leaves them.
std::vector<Row> pack_rows(std::vector<Piece> pieces, int64_t length);

class Packer final {
 public:
  // `stream` must outlive the packer. A window is `window_rows` rows' worth of tokens.
  Packer(DocumentStream& stream, int64_t length, int64_t window_rows, uint64_t seed);

  Row next();
  // Passes over rows without a use for them.
  void skip(int64_t rows);

  Json state() const;
  // Brings the stream with it. Throws kInvalidArgument for a state that does not fit.
  void restore(const Json& state);

 private:
  void fill();

  DocumentStream& stream_;
  int64_t length_, window_rows_;
  uint64_t seed_;
  Json window_start_;      // of the stream
  int64_t windows_ = 0;    // filled so far
  std::size_t taken_ = 0;  // rows of this window
  std::vector<Row> rows_;
};

}  // namespace coppice
