#include "coppice/eviction/selection.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "coppice/core/error.h"

namespace coppice {
namespace {

constexpr int64_t kStep = 16;   // ranks looked at together
constexpr int kIndexBits = 38;  // of Candidate::place; the rest holds the row

}  // namespace

int32_t score_rank(float score) {
  int32_t rank;
  score_ranks({&score, 1}, {&rank, 1});
  return rank;
}

void score_ranks(std::span<const float> scores, std::span<int32_t> ranks) {
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const float score = scores[i] + 0.0f;  // makes -0 a +0
    const auto bits = std::bit_cast<int32_t>(score);
    const int32_t rank = bits ^ ((bits >> 31) & INT32_MAX);
    ranks[i] = score == score ? rank : INT32_MIN;
  }
}

// A rank below which, by a sample, somewhat more than `count` entries lie.
int32_t Selector::guess_cut(std::span<const int32_t> ranks, int64_t count) {
  const auto total = static_cast<int64_t>(ranks.size());
  const int64_t size = std::clamp<int64_t>(total / 16, 16, 1024);
  if (total <= 64) return INT32_MAX;
  const double expected =
      static_cast<double>(count) / static_cast<double>(total) * static_cast<double>(size);
  const auto take = static_cast<int64_t>(expected + 3.0 * std::sqrt(expected)) + 2;
  if (take >= size) return INT32_MAX;
  sample_.clear();
  for (int64_t i = 0; i < size; ++i)
    sample_.push_back(ranks[static_cast<std::size_t>(i * total / size)]);
  std::nth_element(sample_.begin(), sample_.begin() + take, sample_.end());
  return sample_[static_cast<std::size_t>(take)];
}

void Selector::collect(const RankedRows& rows, int32_t cut) {
  candidates_.clear();
  const auto add = [&](std::size_t row, int64_t index) {
    const auto i = static_cast<std::size_t>(index);
    const uint32_t rank = static_cast<uint32_t>(rows.ranks[i]) ^ 0x80000000u;
    const uint64_t worth = (uint64_t{rank} << 32) | static_cast<uint32_t>(rows.positions[i]);
    const uint64_t last_row = (uint64_t{1} << (64 - kIndexBits)) - 1;
    candidates_.push_back({worth, ((last_row - row) << kIndexBits) | static_cast<uint64_t>(index)});
  };
  for (std::size_t row = 0; row + 1 < rows.offsets.size(); ++row) {
    int64_t index = rows.offsets[row];
    const int64_t end = rows.offsets[row + 1];
    for (; index + kStep <= end; index += kStep) {
      const int32_t* ranks = rows.ranks.data() + index;
      int32_t hits = 0;
      for (int64_t i = 0; i < kStep; ++i) hits += ranks[i] <= cut ? 1 : 0;
      if (hits == 0) continue;
      for (int64_t i = 0; i < kStep; ++i)
        if (ranks[i] <= cut) add(row, index + i);
    }
    for (; index < end; ++index)
      if (rows.ranks[static_cast<std::size_t>(index)] <= cut) add(row, index);
  }
}

std::span<const int64_t> Selector::lowest(const RankedRows& rows, int64_t count) {
  const auto total = static_cast<int64_t>(rows.ranks.size());
  COPPICE_CHECK(count >= 0 && count <= total, "{} of {} entries were asked", count, total);
  COPPICE_CHECK(
      total < int64_t{1} << kIndexBits && rows.offsets.size() < std::size_t{1} << (64 - kIndexBits),
      "{} entries in {} rows are too many", total, rows.offsets.size());
  result_.clear();
  if (count == 0) return result_;
  collect(rows, guess_cut(rows.ranks, count));
  if (static_cast<int64_t>(candidates_.size()) < count) collect(rows, INT32_MAX);
  partitioned_ = candidates_;
  std::nth_element(partitioned_.begin(), partitioned_.begin() + (count - 1), partitioned_.end());
  const Candidate last = partitioned_[static_cast<std::size_t>(count - 1)];
  for (const Candidate& candidate : candidates_)
    if (!(last < candidate))
      result_.push_back(static_cast<int64_t>(candidate.place & ((uint64_t{1} << kIndexBits) - 1)));
  return result_;
}

}  // namespace coppice
