// Pins as sets of positions, and the look over a row that passes them over.
#include "coppice/eviction/pins.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/eviction/rival_testing.h"
#include "coppice/ops/cpu_features.h"

namespace coppice {
namespace {

using testing::Positions;
using testing::Rig;

std::set<int32_t> positions_of(const std::vector<PositionSpan>& pins) {
  std::set<int32_t> all;
  for (const PositionSpan& pin : pins)
    for (int32_t p = pin.begin; p < pin.end; ++p) all.insert(p);
  return all;
}

TEST(Pins, are_sets_of_positions) {
  Rng rng(1);
  const auto below = [&](uint64_t limit) { return static_cast<int32_t>(rng.below(limit)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<PositionSpan> pins;
    for (uint64_t i = rng.below(6); i > 0; --i) {
      const int32_t begin = below(30);
      pins.push_back({begin, begin + 1 + below(6)});
    }
    const std::set<int32_t> all = positions_of(pins);
    const std::vector<PositionSpan> merged = merge_pins(pins);
    ASSERT_EQ(positions_of(merged), all);
    for (std::size_t i = 1; i < merged.size(); ++i)
      ASSERT_GT(merged[i].begin, merged[i - 1].end);  // one form: equal sets are equal lists
    ASSERT_EQ(pinned_tokens(merged), static_cast<int64_t>(all.size()));
    const int32_t cut = below(40), sinks = below(5), recent = below(8);
    std::set<int32_t> early, safe;
    for (int32_t p = 0; p < cut; ++p) {
      ASSERT_EQ(is_pinned(merged, p), all.contains(p));
      if (all.contains(p)) early.insert(p);
      if (all.contains(p) || p < sinks || p >= cut - recent) safe.insert(p);
    }
    ASSERT_EQ(positions_of(clip_pins(merged, cut)), early);
    ASSERT_EQ(safe_tokens(sinks, recent, merged, cut), static_cast<int64_t>(safe.size()));
  }
}

TEST(Pins, spans_that_are_none_and_pins_that_do_not_fit_are_refused) {
  const CacheConfig cache{.num_layers = 2, .num_kv_heads = 2, .head_dim = 4, .max_blocks = 1};
  const auto message = [&](std::vector<PositionSpan> pins, int64_t budget = 20) -> std::string {
    try {
      EvictionConfig config{.policy = "streaming", .budget_entries = budget, .recent = 3};
      config.pins = std::move(pins);
      const EvictionPolicy policy(config, cache);
      return {};
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
  };
  EXPECT_NE(message({{3, 3}}).find("got 3 to 3"), std::string::npos);
  EXPECT_NE(message({{-1, 3}}).find("got -1 to 3"), std::string::npos);
  EXPECT_EQ(message({{2, 17}}), "");  // 4 sinks, 13 beside them, 3 recent
  const std::string text = message({{2, 18}});
  for (const char* part : {"14 pinned", "4 sinks", "3 recent", "budget of 20", "at most 13"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(message({{2, 18}}, EvictionConfig::kUnbounded), "");
}

TEST(Pins, what_is_recent_unless_said_gives_way_to_them) {
  EvictionConfig config = testing::with("snapkv", 40);
  EXPECT_EQ(Rig(config, 1, 1, 2).policy.config().recent, 20);
  config.pins = {{0, 35}};
  EXPECT_EQ(Rig(config, 1, 1, 2).policy.config().recent, 5);
}

// Both looks find the same candidates and note the same bounds, to the bit.
TEST(Pins, all_levels_pass_the_same_entries_over) {
  if (ops::detected_cpu_level() < ops::CpuLevel::kAvx512) GTEST_SKIP() << "needs AVX-512";
  constexpr int32_t kLength = 16 * 9 + 5;
  Rng rng(4);
  const ops::CpuLevel before = ops::cpu_level();
  for (int round = 0; round < 50; ++round) {
    Positions positions(kLength + 11);
    std::iota(positions.begin(), positions.end(), 0);
    for (int32_t i = kLength - 1; i > 0; --i)
      std::swap(positions[static_cast<std::size_t>(i)],
                positions[rng.below(static_cast<uint64_t>(i + 1))]);
    std::vector<float> betas, aux;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      betas.push_back(-static_cast<float>(rng.below(1000)) / 999.0f);
      aux.push_back(static_cast<float>(rng.below(1000)) / 333.0f);
    }
    std::vector<PositionSpan> pins;
    for (uint64_t i = rng.below(5); i > 0; --i) {
      const auto begin = static_cast<int32_t>(rng.below(kLength));
      pins.push_back({begin, begin + 1 + static_cast<int32_t>(rng.below(20))});
    }
    pins = merge_pins(std::move(pins));
    BlockTable row{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {}, kLength};
    row.stamps.assign(10, 7);
    const Contest contest{.positions = positions.data(),
                          .log_betas = betas.data(),
                          .aux = aux.data(),
                          .form = {.slope_is_log_beta = true, .age_offset = 1, .aux_weight = 1},
                          .newest = kLength - 1,
                          .sinks = 3,
                          .recent = 5,
                          .pins = pins};
    std::vector<Candidate> found[2];
    RowBounds bounds[2];
    for (int wide = 0; wide < 2; ++wide) {
      ops::set_cpu_level(wide == 1 ? ops::CpuLevel::kAvx512 : ops::CpuLevel::kPortable);
      found[wide].resize(kLength);
      const int64_t offset = 0;
      int64_t count = 0;
      collect_candidates(contest, score_rank(-20.0f),
                         {.tables = {&row, 1},
                          .bounds = &bounds[wide],
                          .out = found[wide].data(),
                          .offsets = &offset,
                          .found = &count});
      found[wide].resize(static_cast<std::size_t>(count));
    }
    ASSERT_EQ(found[0].size(), found[1].size());
    for (std::size_t i = 0; i < found[0].size(); ++i) {
      ASSERT_EQ(found[0][i].worth, found[1][i].worth);
      ASSERT_EQ(found[0][i].place, found[1][i].place);
      const auto place = static_cast<std::size_t>(found[0][i].row_place());
      ASSERT_FALSE(is_pinned(pins, positions[place]));
    }
    ASSERT_EQ(bounds[0].low, bounds[1].low);
    ASSERT_EQ(bounds[0].fall, bounds[1].fall);
  }
  ops::set_cpu_level(before);
}

}  // namespace
}  // namespace coppice
