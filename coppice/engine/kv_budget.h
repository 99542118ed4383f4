// The one number a user gives for KV memory, and what it comes to for a request.
//
//   "512"      512 entries per KV head, in the mean over all heads and layers
//   "64MiB"    bytes allocated in all (B, KiB, MiB, GiB, kB, MB, GB): pages, their waste and one
//              chunk included
//   "12.5%"    that share of the prompt plus the new tokens asked for
//   "full"     no eviction
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace coppice {

struct KvBudget {
  enum class Unit { kFull, kEntries, kBytes, kShare };
  Unit unit = Unit::kFull;
  int64_t entries = 0;  // kEntries, > 0
  int64_t bytes = 0;    // kBytes, > 0
  double share = 0;     // kShare, in (0, 1]

  // Throws kInvalidArgument: what was given and the four forms expected.
  static KvBudget parse(std::string_view text);
  std::string to_string() const;

  // Entries per head for a request of `tokens` (prompt plus new ones). kBytes needs the model's
  // sizes and is resolved by MemoryPlan instead: REQUIRES unit != kBytes. kFull gives
  // EvictionConfig::kUnbounded.
  int64_t entries_for(int64_t tokens) const;
};

}  // namespace coppice
