#include "coppice/cache/validator.h"

#include <gtest/gtest.h>

#include <functional>

namespace coppice {
namespace {

// Two sequences of two rows; the second has a pass of 3 tokens in progress, its first row appended.
CacheSnapshot healthy() {
  CacheSnapshot snapshot{.num_layers = 2,
                         .num_kv_heads = 1,
                         .max_blocks = 8,
                         .blocks_in_use = 6,
                         .peak_blocks = 6,
                         .taken = {1, 1, 1, 1, 1, 1, 0, 0},
                         .sequences = {}};
  CacheSnapshot::Row first{.length = 17, .blocks = {0, 4}, .positions = {}, .appended = false};
  for (int32_t i = 0; i < 17; ++i) first.positions.push_back(20 - i);
  const CacheSnapshot::Row second{
      .length = 2, .blocks = {1}, .positions = {5, 20}, .appended = false};
  snapshot.sequences.push_back(
      {.id = 0, .tokens_seen = 21, .tokens_in_pass = 0, .entries = 19, .rows = {first, second}});
  const CacheSnapshot::Row open{
      .length = 4, .blocks = {2}, .positions = {1, 15, 16, 17}, .appended = true};
  CacheSnapshot::Row waiting{.length = 15, .blocks = {3, 5}, .positions = {}, .appended = false};
  for (int32_t i = 0; i < 15; ++i) waiting.positions.push_back(i);
  snapshot.sequences.push_back(
      {.id = 1, .tokens_seen = 15, .tokens_in_pass = 3, .entries = 19, .rows = {open, waiting}});
  return snapshot;
}

TEST(Validator, a_healthy_snapshot_has_no_faults) { EXPECT_TRUE(validate(healthy()).empty()); }

TEST(Validator, every_corruption_is_caught) {
  struct Case {
    const char* text;  // part of one of the faults
    std::function<void(CacheSnapshot&)> corrupt;
  };
  const std::vector<Case> cases = {
      {"is in two rows", [](auto& s) { s.sequences[1].rows[0].blocks[0] = 1; }},
      {"is in two rows", [](auto& s) { s.sequences[0].rows[0].blocks[1] = 0; }},
      {"in use by no row", [](auto& s) { s.sequences[0].rows[0].blocks[1] = 0; }},
      {"in use by no row", [](auto& s) { s.taken[7] = 1, s.blocks_in_use = s.peak_blocks = 7; }},
      {"free list", [](auto& s) { s.taken[4] = 0; }},
      {"outside the pool", [](auto& s) { s.sequences[0].rows[0].blocks[1] = 8; }},
      {"outside the pool", [](auto& s) { s.sequences[0].rows[0].blocks[1] = -1; }},
      {"do not fit", [](auto& s) { s.sequences[0].rows[1].length = 17; }},
      {"do not fit", [](auto& s) { s.sequences[0].rows[1].blocks.clear(); }},
      {"entries need", [](auto& s) { s.sequences[0].rows[1].blocks.push_back(6); }},
      {"entries need", [](auto& s) { s.sequences[1].tokens_in_pass = 1; }},
      {"positions for", [](auto& s) { s.sequences[0].rows[1].positions.pop_back(); }},
      {"held twice", [](auto& s) { s.sequences[0].rows[1].positions[0] = 20; }},
      {"has position", [](auto& s) { s.sequences[0].rows[1].positions[0] = 21; }},
      {"has position", [](auto& s) { s.sequences[0].rows[1].positions[0] = -1; }},
      {"has position", [](auto& s) { s.sequences[1].rows[0].positions[0] = 15; }},
      {"has position",
       [](auto& s) {
         std::swap(s.sequences[1].rows[0].positions[1], s.sequences[1].rows[0].positions[2]);
       }},
      {"says", [](auto& s) { s.sequences[0].entries = 20; }},
      {"rows, expected", [](auto& s) { s.sequences[0].rows.pop_back(); }},
      {"pool says", [](auto& s) { s.blocks_in_use = 5; }},
      {"bound", [](auto& s) { s.peak_blocks = 9; }},
      {"bound", [](auto& s) { s.max_blocks = 5; }},
      {"peak of", [](auto& s) { s.peak_blocks = 5; }},
  };
  for (const Case& test : cases) {
    CacheSnapshot snapshot = healthy();
    test.corrupt(snapshot);
    const auto faults = validate(snapshot);
    bool found = false;
    for (const std::string& fault : faults) found |= fault.find(test.text) != std::string::npos;
    EXPECT_TRUE(found) << "no fault with \"" << test.text << "\" among " << faults.size();
  }
}

}  // namespace
}  // namespace coppice
