#include "coppice/eviction/selection.h"

#include <algorithm>
#include <cmath>

#include "coppice/core/error.h"
#include "coppice/ops/parallel.h"

namespace coppice {
namespace {

constexpr int32_t kEvery = kProtectedRank - 1;  // a cut that leaves out safe entries alone
constexpr int64_t kSampledBlocks = 64;
constexpr int64_t kEntriesPerPiece = 8192;  // few of them are looked at

int32_t rank_of(const Candidate& candidate) {
  return static_cast<int32_t>(static_cast<uint32_t>(candidate.worth >> 32) ^ 0x80000000u);
}

}  // namespace

void Selector::begin(std::span<const BlockTable> rows, SelectionMemory& memory) {
  offsets_.assign(1, 0);
  for (const BlockTable& row : rows) offsets_.push_back(offsets_.back() + row.length);
  limits_.assign(rows.size(), -1);
  memory.bounds.resize(rows.size());
}

int64_t Selector::count_below(const Contest& contest, std::span<const BlockTable> rows,
                              float threshold, SelectionMemory& memory) {
  begin(rows, memory);
  if (contest.floor > 0)
    for (std::size_t r = 0; r < rows.size(); ++r)
      limits_[r] = std::max<int64_t>(rows[r].length - contest.floor, 0);
  return collect(contest, rows, score_rank(threshold) - 1, memory.bounds);
}

void Selector::select(const Contest& contest, std::span<const BlockTable> rows, int64_t count,
                      SelectionMemory& memory) {
  COPPICE_CHECK(count >= 0 && rows.size() < UINT32_MAX, "{} entries of {} rows were asked", count,
                rows.size());
  begin(rows, memory);
  int32_t cut = memory.count == count && count > 0 ? memory.cut : guess_cut(contest, rows, count);
  do {
    if (collect(contest, rows, cut, memory.bounds) < count) {
      cut = kEvery;
      const int64_t most = collect(contest, rows, cut, memory.bounds);
      COPPICE_CHECK(most >= count, "{} entries were asked, {} may go", count, most);
    }
    choose(count);
  } while (contest.floor > 0 && limit_short_rows(rows, contest.floor));
  remember_cut(count, cut, memory);
}

std::span<const int32_t> Selector::chosen(std::size_t row) const {
  const auto first = static_cast<std::size_t>(place_offsets_[row]);
  const auto last = static_cast<std::size_t>(place_offsets_[row + 1]);
  return std::span(places_).subspan(first, last - first);
}

// Returns how many entries may go at this cut.
int64_t Selector::collect(const Contest& contest, std::span<const BlockTable> rows, int32_t cut,
                          std::vector<RowBounds>& bounds) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t total = offsets_.back();
  if (capacity_ < total) {
    candidates_ = std::make_unique_for_overwrite<Candidate[]>(static_cast<std::size_t>(total));
    capacity_ = total;
  }
  found_.assign(rows.size(), 0);
  const int64_t grain = count * kEntriesPerPiece / std::max<int64_t>(total, 1);
  ops::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    const auto first = static_cast<std::size_t>(begin);
    collect_candidates(contest, cut,
                       {.tables = rows.subspan(first, static_cast<std::size_t>(end - begin)),
                        .first_row = first,
                        .bounds = bounds.data() + begin,
                        .out = candidates_.get(),
                        .offsets = offsets_.data() + begin,
                        .found = found_.data() + begin});
  });
  apply_limits();
  int64_t sum = 0;
  for (const int64_t found : found_) sum += found;
  return sum;
}

// Of a row that may lose no more than its limit, the candidates of most worth are struck out.
void Selector::apply_limits() {
  for (std::size_t r = 0; r < found_.size(); ++r) {
    const int64_t limit = limits_[r];
    if (limit < 0 || found_[r] <= limit) continue;
    Candidate* begin = candidates_.get() + offsets_[r];
    Candidate* end = begin + found_[r];
    found_[r] = limit;
    if (limit == 0) continue;
    merged_.assign(begin, end);
    std::nth_element(merged_.begin(), merged_.begin() + (limit - 1), merged_.end());
    const Candidate last = merged_[static_cast<std::size_t>(limit - 1)];
    std::copy_if(begin, end, begin, [&](const Candidate& c) { return !(last < c); });
  }
}

void Selector::choose(int64_t count) {
  merged_.clear();
  for (std::size_t r = 0; r < found_.size(); ++r) {
    const Candidate* begin = candidates_.get() + offsets_[r];
    merged_.insert(merged_.end(), begin, begin + found_[r]);
  }
  places_.clear();
  place_offsets_.assign(1, 0);
  if (count > 0) std::nth_element(merged_.begin(), merged_.begin() + (count - 1), merged_.end());
  for (std::size_t r = 0; r < found_.size(); ++r) {
    const Candidate* begin = candidates_.get() + offsets_[r];
    for (const Candidate* c = begin; count > 0 && c != begin + found_[r]; ++c)
      if (!(merged_[static_cast<std::size_t>(count - 1)] < *c)) places_.push_back(c->row_place());
    place_offsets_.push_back(static_cast<int64_t>(places_.size()));
  }
}

// Where each row keeps at least its floor, the choice stands: a row's best entries are among what
// it keeps. Else the short rows are limited to what they may lose, and the choice is made anew.
bool Selector::limit_short_rows(std::span<const BlockTable> rows, int64_t floor) {
  bool changed = false;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const int64_t most = std::max<int64_t>(rows[r].length - floor, 0);
    if (place_offsets_[r + 1] - place_offsets_[r] <= most) continue;
    limits_[r] = most;
    changed = true;
  }
  return changed;
}

// A rank below which, by a sample of blocks, more than `count` entries lie.
int32_t Selector::guess_cut(const Contest& contest, std::span<const BlockTable> rows,
                            int64_t count) {
  const int64_t total = offsets_.back();
  const int64_t stride = total / kBlockEntries / kSampledBlocks;
  if (stride < 2) return kEvery;
  merged_.clear();
  BlockTable block{{0}, {}, kBlockEntries};
  Candidate found[kBlockEntries];
  const int64_t none = 0;
  int64_t sampled = 0, until_next = 0, n = 0;
  for (const BlockTable& row : rows) {
    for (int64_t b = 0; b < row.length / kBlockEntries; ++b) {
      if (until_next-- > 0) continue;
      until_next = stride - 1;
      block.blocks[0] = row.blocks[static_cast<std::size_t>(b)];
      collect_candidates(contest, kEvery,
                         {.tables = {&block, 1}, .out = found, .offsets = &none, .found = &n});
      merged_.insert(merged_.end(), found, found + n);
      sampled += kBlockEntries;
    }
  }
  const double expected =
      static_cast<double>(count) / static_cast<double>(total) * static_cast<double>(sampled);
  // The entries of a block are neighbours and alike, so the sample is worth less than its size.
  const auto take = static_cast<int64_t>(1.25 * expected + 6.0 * std::sqrt(expected)) + 8;
  if (take >= static_cast<int64_t>(merged_.size())) return kEvery;
  std::nth_element(merged_.begin(), merged_.begin() + take, merged_.end());
  return rank_of(merged_[static_cast<std::size_t>(take)]);
}

// The next choice of as many entries looks at about twice as many candidates.
void Selector::remember_cut(int64_t count, int32_t cut, SelectionMemory& memory) {
  const auto found = static_cast<int64_t>(merged_.size());
  const int64_t wanted = 2 * count + 32;
  memory.count = found < wanted - count / 2 ? 0 : count;
  memory.cut = cut;
  if (found <= 2 * wanted) return;
  std::nth_element(merged_.begin() + count, merged_.begin() + wanted, merged_.end());
  memory.cut = rank_of(merged_[static_cast<std::size_t>(wanted)]);
}

}  // namespace coppice
