#include "coppice/eval/policy_choice.h"

#include <gtest/gtest.h>

#include "coppice/core/error.h"

namespace coppice {
namespace {

TEST(PolicyChoice, E03_a_word_sets_what_it_says_and_its_name_says_what_is_set) {
  EvictionConfig base;
  base.budget_entries = 64;
  base.seed = 9;
  const EvictionConfig plain = parse_policy_choice("dbtrimkv", base);
  EXPECT_EQ(plain.policy, "dbtrimkv");
  EXPECT_EQ(plain.budget_entries, 64);
  EXPECT_FALSE(plain.recent.has_value());
  EXPECT_EQ(policy_choice_name(plain), "dbtrimkv");

  const EvictionConfig window = parse_policy_choice("snapkv:window=16,recent=8,kernel=5", base);
  EXPECT_EQ(window.policy, "snapkv");
  EXPECT_EQ(window.recent, 8);
  EXPECT_EQ(window.seed, 9u);
  EXPECT_EQ(window.options, (OptionMap{{"window", "16"}, {"kernel", "5"}}));
  EXPECT_EQ(policy_choice_name(window), "snapkv:kernel=5,recent=8,window=16");

  const EvictionConfig all =
      parse_policy_choice("trimkv:sinks=0,recent=4,floor=2,lookahead=7,scope=layer", base);
  EXPECT_EQ(all.sinks, 0);
  EXPECT_EQ(all.floor, 2);
  EXPECT_EQ(all.lookahead, 7);
  EXPECT_EQ(all.scope, Scope::kLayer);
  EXPECT_EQ(parse_policy_choice(policy_choice_name(all), base), all);
}

TEST(PolicyChoice, what_is_no_such_word_is_refused) {
  for (const char* word : {"snapkv:", "snapkv:window", "snapkv:=3", "snapkv:window=", "a:recent=x",
                           "a:recent=-1", "a:recent=1,recent=2", "a:scope=all", "a:sinks=1,",
                           "a:recent=99999999999999999999", "a:lookahead=2.5"})
    EXPECT_THROW(parse_policy_choice(word, {}), Error) << word;
}

}  // namespace
}  // namespace coppice
