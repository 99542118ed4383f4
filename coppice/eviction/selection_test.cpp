#include "coppice/eviction/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/ops/parallel.h"

namespace coppice {
namespace {

TEST(ScoreRank, keeps_the_order_of_floats) {
  const float inf = std::numeric_limits<float>::infinity();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float rising[] = {-inf, -3e38f, -1.5f, -1.0f, -tiny, 0.0f, tiny, 1.0f, 3e38f, inf};
  for (std::size_t i = 1; i < std::size(rising); ++i)
    EXPECT_LT(score_rank(rising[i - 1]), score_rank(rising[i]));
  EXPECT_EQ(score_rank(-0.0f), score_rank(0.0f));
  EXPECT_LT(score_rank(inf), kProtectedRank);
  for (const float sign : {1.0f, -1.0f})
    EXPECT_LT(score_rank(std::copysign(std::nanf(""), sign)), score_rank(-inf));
}

// Rows with blocks in any order. The score of an entry is its aux, so tests choose ranks freely.
struct Rows {
  std::vector<BlockTable> rows;
  std::vector<int32_t> positions;
  std::vector<float> log_betas, aux;
  ScoreForm form{.aux_weight = 1.0f};
  int64_t newest = 0;
  uint64_t next_stamp = 1;

  void add_row(int64_t length, Rng& rng) {
    BlockTable& row = rows.emplace_back();
    row.length = length;
    for (int64_t b = 0; b < blocks_for_row(length); ++b) {
      row.blocks.push_back(static_cast<int32_t>(positions.size() / kBlockEntries));
      row.stamps.push_back(next_stamp++);
      positions.resize(positions.size() + kBlockEntries, 7);
      log_betas.resize(positions.size(), -1.0f);
      aux.resize(positions.size(), -1e30f);  // what no row owns must not be chosen
    }
    for (std::size_t b = row.blocks.size(); b > 1; --b)
      std::swap(row.blocks[b - 1], row.blocks[rng.below(b)]);
  }
  float& score(std::size_t row, int64_t place) {
    return aux[static_cast<std::size_t>(rows[row].slot(place))];
  }
  int32_t& position(std::size_t row, int64_t place) {
    return positions[static_cast<std::size_t>(rows[row].slot(place))];
  }
  Contest contest(int64_t sinks = 0, int64_t recent = 0, int64_t floor = 0) const {
    return {.positions = positions.data(),
            .log_betas = log_betas.data(),
            .aux = aux.data(),
            .form = form,
            .newest = newest,
            .sinks = sinks,
            .recent = recent,
            .floor = floor};
  }
  int64_t total() const {
    int64_t sum = 0;
    for (const BlockTable& row : rows) sum += row.length;
    return sum;
  }
};

using Choice = std::vector<std::vector<int32_t>>;

Choice chosen(const Selector& selector, std::size_t rows) {
  Choice choice;
  for (std::size_t r = 0; r < rows; ++r)
    choice.emplace_back(selector.chosen(r).begin(), selector.chosen(r).end());
  return choice;
}

// The sorted truth: worth by score, newer position, lower row; safe entries stay, and so do the
// best `floor` of each row.
Choice sorted_choice(Rows& rows, int64_t count, const Contest& contest) {
  using Key = std::tuple<int32_t, int32_t, int64_t, int64_t>;
  std::vector<Key> free;
  for (std::size_t r = 0; r < rows.rows.size(); ++r) {
    std::vector<Key> row;
    int64_t safe = 0;
    for (int64_t i = 0; i < rows.rows[r].length; ++i) {
      const int32_t position = rows.position(r, i);
      if (position < contest.sinks || position > contest.newest - contest.recent) {
        ++safe;
        continue;
      }
      row.emplace_back(score_rank(rows.score(r, i)), position, -static_cast<int64_t>(r), i);
    }
    std::sort(row.begin(), row.end());
    const int64_t must_stay = std::max<int64_t>(contest.floor - safe, 0);
    row.resize(static_cast<std::size_t>(
        std::max<int64_t>(static_cast<int64_t>(row.size()) - must_stay, 0)));
    free.insert(free.end(), row.begin(), row.end());
  }
  std::sort(free.begin(), free.end());
  Choice choice(rows.rows.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto& [rank, position, row, place] = free[static_cast<std::size_t>(i)];
    choice[static_cast<std::size_t>(-row)].push_back(static_cast<int32_t>(place));
  }
  for (auto& places : choice) std::sort(places.begin(), places.end());
  return choice;
}

Rows random_rows(Rng& rng, int64_t longest) {
  Rows rows;
  const uint64_t count = 1 + rng.below(12);
  // From all different to all equal.
  const uint64_t values = std::vector<uint64_t>{1, 2, 30, uint64_t{1} << 32}[rng.below(4)];
  for (uint64_t r = 0; r < count; ++r) {
    rows.add_row(static_cast<int64_t>(rng.below(static_cast<uint64_t>(longest))), rng);
    const auto shift = static_cast<int32_t>(rng.below(5));
    const int64_t length = rows.rows.back().length;
    for (int64_t i = 0; i < length; ++i) {
      rows.score(r, i) = static_cast<float>(rng.below(values)) - 3.0f;
      rows.position(r, i) = static_cast<int32_t>(length - i) + shift;
    }
    rows.newest = std::max<int64_t>(rows.newest, length + shift);
  }
  return rows;
}

// Rows of one length, whose entries lie by position; scores are whole numbers below `values`.
Rows even_rows(Rng& rng, std::size_t count, int64_t length, uint64_t values) {
  Rows rows;
  rows.newest = length - 1;
  for (std::size_t r = 0; r < count; ++r) {
    rows.add_row(length, rng);
    for (int64_t i = 0; i < length; ++i) {
      rows.score(r, i) = static_cast<float>(rng.below(values));
      rows.position(r, i) = static_cast<int32_t>(i);
    }
  }
  return rows;
}

TEST(Selector, equals_a_full_sort) {
  Rng rng(1);
  Selector selector;
  for (int round = 0; round < 400; ++round) {
    Rows rows = random_rows(rng, round % 4 == 0 ? 600 : 60);
    SelectionMemory memory;
    const Contest contest = rows.contest();
    for (const int64_t count :
         {int64_t{0}, int64_t{1},
          static_cast<int64_t>(rng.below(static_cast<uint64_t>(rows.total()) + 1)), rows.total()}) {
      if (count > rows.total()) continue;
      selector.select(contest, rows.rows, count, memory);
      ASSERT_EQ(chosen(selector, rows.rows.size()), sorted_choice(rows, count, contest));
    }
  }
}

TEST(Selector, safe_entries_and_floors_stay) {
  Rng rng(2);
  Selector selector;
  for (int round = 0; round < 300; ++round) {
    Rows rows = random_rows(rng, round % 4 == 0 ? 400 : 40);
    const Contest contest =
        rows.contest(static_cast<int64_t>(rng.below(4)), static_cast<int64_t>(rng.below(4)),
                     static_cast<int64_t>(rng.below(12)));
    int64_t most = 0;
    for (const auto& places : sorted_choice(rows, 0, contest))
      most += static_cast<int64_t>(places.size());
    for (std::size_t r = 0; r < rows.rows.size(); ++r) {
      int64_t safe = 0;
      for (int64_t i = 0; i < rows.rows[r].length; ++i) {
        const int32_t p = rows.position(r, i);
        safe += p < contest.sinks || p > contest.newest - contest.recent ? 1 : 0;
      }
      most += std::max<int64_t>(rows.rows[r].length - std::max(safe, contest.floor), 0);
    }
    SelectionMemory memory;
    for (const int64_t count : {most / 3, most}) {
      selector.select(contest, rows.rows, count, memory);
      ASSERT_EQ(chosen(selector, rows.rows.size()), sorted_choice(rows, count, contest));
    }
  }
}

TEST(Selector, a_cut_that_misleads_is_made_good) {
  Rng rng(3);
  Rows rows = even_rows(rng, 20, 1000, 5000);
  Selector selector;
  for (const int32_t cut : {std::numeric_limits<int32_t>::min(), score_rank(1.0f),
                            score_rank(4000.0f), std::numeric_limits<int32_t>::max() - 1}) {
    for (const int64_t count : {1, 90, 700, 5000}) {
      SelectionMemory memory{count, cut, {}};
      for (int again = 0; again < 3; ++again) {  // also with what the last choice left
        selector.select(rows.contest(), rows.rows, count, memory);
        ASSERT_EQ(chosen(selector, 20), sorted_choice(rows, count, rows.contest()));
      }
    }
  }
}

TEST(Selector, threads_change_nothing) {
  Rng rng(4);
  Rows rows = even_rows(rng, 90, 600, 50);
  const int before = ops::num_threads();
  std::vector<Choice> choices;
  for (const int threads : {1, 4}) {
    ops::set_num_threads(threads);
    Selector selector;
    SelectionMemory memory;
    selector.select(rows.contest(), rows.rows, 5000, memory);
    choices.push_back(chosen(selector, 90));
  }
  ops::set_num_threads(before);
  EXPECT_EQ(choices[0], choices[1]);
}

TEST(Selector, scores_are_lines_in_age) {
  Rng rng(5);
  Rows rows;
  rows.form = {.slope_is_log_beta = true, .age_offset = 1.0f, .aux_weight = 2.0f};
  rows.newest = 100;
  for (std::size_t r = 0; r < 3; ++r) rows.add_row(50, rng);
  std::vector<std::tuple<float, int32_t, int64_t, int64_t>> sorted;
  for (std::size_t r = 0; r < 3; ++r)
    for (int64_t i = 0; i < 50; ++i) {
      const auto slot = static_cast<std::size_t>(rows.rows[r].slot(i));
      rows.positions[slot] = static_cast<int32_t>(i * 2);
      rows.log_betas[slot] = -static_cast<float>(rng.uniform());
      rows.aux[slot] = static_cast<float>(rng.uniform());
      const float score =
          (static_cast<float>(100 - i * 2) + 1.0f) * rows.log_betas[slot] + 2.0f * rows.aux[slot];
      sorted.emplace_back(score, rows.positions[slot], -static_cast<int64_t>(r), i);
    }
  std::sort(sorted.begin(), sorted.end());
  Choice expected(3);
  for (std::size_t i = 0; i < 40; ++i)
    expected[static_cast<std::size_t>(-std::get<2>(sorted[i]))].push_back(
        static_cast<int32_t>(std::get<3>(sorted[i])));
  for (auto& places : expected) std::sort(places.begin(), places.end());
  Selector selector;
  SelectionMemory memory;
  selector.select(rows.contest(), rows.rows, 40, memory);
  EXPECT_EQ(chosen(selector, 3), expected);
}

TEST(Selector, more_than_may_go_is_refused) {
  Rng rng(6);
  Rows rows;
  rows.add_row(3, rng);
  for (int64_t i = 0; i < 3; ++i) rows.position(0, i) = static_cast<int32_t>(i);
  rows.newest = 2;
  Selector selector;
  SelectionMemory memory;
  EXPECT_THROW(selector.select(rows.contest(), rows.rows, 4, memory), Error);
  EXPECT_THROW(selector.select(rows.contest(), rows.rows, -1, memory), Error);
  EXPECT_THROW(selector.select(rows.contest(1), rows.rows, 3, memory), Error);
  EXPECT_THROW(selector.select(rows.contest(0, 0, 2), rows.rows, 2, memory), Error);
}

}  // namespace
}  // namespace coppice
