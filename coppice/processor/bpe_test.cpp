#include "coppice/processor/bpe.h"

#include <gtest/gtest.h>

#include "coppice/core/rng.h"

namespace coppice {
namespace {

TEST(MergeTable, FindsWhatWasAddedAndNothingElse) {
  MergeTable table;
  for (int32_t i = 0; i < 1000; ++i)
    table.add(i, i * 7 % 1000, {static_cast<uint32_t>(i), i + 5000});
  EXPECT_EQ(table.size(), 1000u);
  for (int32_t i = 0; i < 1000; ++i) {
    const auto* merge = table.find(i, i * 7 % 1000);
    ASSERT_NE(merge, nullptr);
    EXPECT_EQ(merge->id, i + 5000);
    EXPECT_EQ(table.find(i, (i * 7 + 1) % 1000), nullptr);
  }
  EXPECT_EQ(table.find(-1, 3), nullptr);
  EXPECT_EQ(table.find(-1, -1), nullptr);
}

TEST(MergeTable, FirstOfEqualPairsStays) {
  MergeTable table;
  table.add(1, 2, {0, 10});
  table.add(1, 2, {1, 11});
  EXPECT_EQ(table.find(1, 2)->id, 10);
  EXPECT_EQ(table.size(), 1u);
}

TEST(Merge, LowestRankFirstThenLeftmost) {
  MergeTable table;
  table.add('a', 'b', {1, 300});
  table.add('b', 'c', {0, 301});
  table.add('a', 'a', {2, 302});
  std::vector<int32_t> word = {'a', 'b', 'c'};
  merge_symbols(table, word);
  EXPECT_EQ(word, (std::vector<int32_t>{'a', 301}));
  word = {'a', 'a', 'a'};
  merge_symbols(table, word);
  EXPECT_EQ(word, (std::vector<int32_t>{302, 'a'}));
}

// The definition, step by step.
std::vector<int32_t> merged_slowly(const MergeTable& table, std::vector<int32_t> word) {
  for (;;) {
    size_t best = word.size();
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      const auto* merge = table.find(word[i], word[i + 1]);
      if (merge == nullptr) continue;
      if (best == word.size() || merge->rank < table.find(word[best], word[best + 1])->rank)
        best = i;
    }
    if (best == word.size()) return word;
    word[best] = table.find(word[best], word[best + 1])->id;
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Merge, LongAndShortWordsEqualTheDefinition) {
  Rng rng(3);
  for (int round = 0; round < 300; ++round) {
    // Random rules over four letters; later rules may use the results of earlier ones.
    MergeTable table;
    std::vector<int32_t> known = {0, 1, 2, 3};
    for (uint32_t rank = 0; rank < 20; ++rank) {
      const int32_t left = known[rng.below(known.size())];
      const int32_t right = known[rng.below(known.size())];
      const auto id = static_cast<int32_t>(known.size());
      if (table.find(left, right) == nullptr) known.push_back(id);
      table.add(left, right, {rank / 2, id});  // ranks in pairs: ties go to the left
    }
    std::vector<int32_t> word(rng.below(120));
    for (int32_t& symbol : word) symbol = static_cast<int32_t>(rng.below(4));
    const auto expected = merged_slowly(table, word);
    merge_symbols(table, word);
    ASSERT_EQ(word, expected);
  }
}

}  // namespace
}  // namespace coppice
