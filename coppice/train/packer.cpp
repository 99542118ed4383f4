#include "coppice/train/packer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/train/state_fields.h"

namespace coppice {
namespace {

constexpr std::size_t kMaxWindowPieces = 1 << 16;

void append_piece(Row& row, Piece piece) {
  const EncodedDocument& document = piece.content;
  const std::size_t count = document.tokens.size();
  if (row.cu_seqlens.empty()) row.cu_seqlens.push_back(0);
  for (std::size_t i = 0; i < count; ++i) {
    row.tokens.push_back(document.tokens[i]);
    const bool learned = i + 1 < count && document.learned[i + 1] != 0;
    row.targets.push_back(learned ? document.tokens[i + 1] : kNoTarget);
  }
  row.cu_seqlens.push_back(static_cast<int64_t>(row.tokens.size()));
  row.labels.push_back(std::move(piece.label));
}

}  // namespace

int64_t Row::num_targets() const {
  return std::ranges::count_if(targets, [](int64_t target) { return target != kNoTarget; });
}

void append_row(Row& row, const Row& more) {
  if (row.cu_seqlens.empty()) row.cu_seqlens.push_back(0);
  const int64_t shift = row.cu_seqlens.back();
  row.tokens.insert(row.tokens.end(), more.tokens.begin(), more.tokens.end());
  row.targets.insert(row.targets.end(), more.targets.begin(), more.targets.end());
  for (std::size_t i = 1; i < more.cu_seqlens.size(); ++i)
    row.cu_seqlens.push_back(more.cu_seqlens[i] + shift);
  row.labels.insert(row.labels.end(), more.labels.begin(), more.labels.end());
}

std::vector<Row> pack_rows(std::vector<Piece> pieces, int64_t length) {
  std::ranges::stable_sort(pieces, [](const Piece& a, const Piece& b) {
    return a.content.tokens.size() > b.content.tokens.size();
  });
  std::vector<Row> rows;
  for (Piece& piece : pieces) {
    const auto size = static_cast<int64_t>(piece.content.tokens.size());
    COPPICE_CHECK(size <= length, "a piece of {} tokens for rows of {}", size, length);
    Row* best = nullptr;
    int64_t least = length + 1;
    for (Row& row : rows) {
      const int64_t room = length - static_cast<int64_t>(row.tokens.size()) - size;
      if (room >= 0 && room < least) best = &row, least = room;
    }
    if (best == nullptr) best = &rows.emplace_back();
    append_piece(*best, std::move(piece));
  }
  return rows;
}

Packer::Packer(DocumentStream& stream, int64_t length, int64_t window_rows, uint64_t seed)
    : stream_(stream), length_(length), window_rows_(window_rows), seed_(seed) {
  if (window_rows < 1) fail_argument("packing: expected a window of rows, got {}", window_rows);
  window_start_ = stream.state();
}

void Packer::fill() {
  window_start_ = stream_.state();
  std::vector<Piece> pieces;
  int64_t tokens = 0;
  while (tokens < length_ * window_rows_ && pieces.size() < kMaxWindowPieces) {
    pieces.push_back(stream_.next());
    tokens += static_cast<int64_t>(pieces.back().content.tokens.size());
  }
  rows_ = pack_rows(std::move(pieces), length_);
  Rng rng(mix_seed(seed_, 0x9ac4, static_cast<uint64_t>(windows_)));
  for (std::size_t i = rows_.size(); i > 1; --i) std::swap(rows_[i - 1], rows_[rng.below(i)]);
  ++windows_;
  taken_ = 0;
}

Row Packer::next() {
  if (taken_ == rows_.size()) fill();
  return std::move(rows_[taken_++]);
}

void Packer::skip(int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) next();
}

Json Packer::state() const {
  return {{"stream", window_start_}, {"windows", windows_}, {"taken", taken_}};
}

void Packer::restore(const Json& state) {
  if (!state.is_object() || !state.contains("stream"))
    fail_argument("training state: it has no \"stream\"");
  const int64_t windows = count_field(state, "windows");
  const int64_t taken = count_field(state, "taken");
  stream_.restore(state["stream"]);
  rows_.clear();
  taken_ = 0;
  windows_ = std::max<int64_t>(0, windows - 1);
  window_start_ = state["stream"];
  if (windows == 0) return;
  fill();
  if (taken > static_cast<int64_t>(rows_.size()))
    fail_argument("training state: {} rows of a window of {}", taken, rows_.size());
  taken_ = static_cast<std::size_t>(taken);
}

}  // namespace coppice
