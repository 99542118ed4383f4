#include "coppice/engine/kv_budget.h"

#include <gtest/gtest.h>

#include "coppice/core/error.h"
#include "coppice/eviction/policy.h"

namespace coppice {
namespace {

TEST(KvBudget, reads_the_four_forms) {
  EXPECT_EQ(KvBudget::parse("512").entries, 512);
  EXPECT_EQ(KvBudget::parse("64MiB").bytes, 64 << 20);
  EXPECT_EQ(KvBudget::parse("1.5kB").bytes, 1500);
  EXPECT_EQ(KvBudget::parse("12.5%").entries_for(1000), 125);
  EXPECT_EQ(KvBudget::parse("full").entries_for(1000), EvictionConfig::kUnbounded);
}

TEST(KvBudget, A11_bad_values_are_refused) {
  for (const char* text : {"", "0", "-1", "2.5", "nan", "inf", "1e308", "1e308MiB", "64 MiB",
                           "64mib", "0%", "101%", "12%%", "FULL", "0x10", "512entries", "0.1B"}) {
    EXPECT_THROW(KvBudget::parse(text), Error) << text;
  }
}

TEST(KvBudget, a_share_never_rounds_down_to_nothing) {
  EXPECT_EQ(KvBudget::parse("0.001%").entries_for(10), 1);
}

}  // namespace
}  // namespace coppice
