// What chat and completion requests have in common: how to draw, how many choices, how to send
// them, and the cache that is asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coppice/engine/kv_budget.h"
#include "coppice/engine/sampling_params.h"
#include "coppice/eviction/policy.h"
#include "coppice/server/budget_range.h"
#include "coppice/server/fields.h"

namespace coppice {

inline constexpr int64_t kMaxChoices = 128;  // of one request, over all its prompts

// The fields of `kv` as the client gave them.
struct KvWish {
  std::optional<KvBudget> budget = {};
  std::optional<std::string> policy = {};
  std::optional<int64_t> min_budget = {};  // accepts as little while others wait
  std::optional<int64_t> sinks = {}, recent = {};
  std::vector<int64_t> keep = {};  // messages by number, rising
  std::vector<int64_t> mark = {};  // the same
};

// What the operator set.
struct KvRules {
  EvictionConfig eviction;                 // for requests that ask for nothing
  KvBudget budget;                         // the same; a share counts from each request's own text
  std::optional<int64_t> ceiling;          // most entries per head that a request may get
  std::optional<int64_t> min_budget = {};  // down to which budgets are lowered; absent: never
  CacheConfig cache;                       // sizes, for budgets in bytes
  int64_t chunk_tokens = 1;
};

struct Generation {
  SamplingParams sampling;  // logprobs are the caller's to set
  int64_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool trace = false;  // kv.trace: the stream tells what the cache holds
  KvWish kv;
};

// Reads `kv`, after `stream` and `n`.
void read_kv(Fields& outer, Generation& generation);

// Reads those fields, ignores the ones that OpenAI's API says are the client's own business, and
// refuses the ones this server cannot honour.
Generation read_generation(Fields& fields);

// The cache of one request whose prompt and new tokens come to `tokens`, with `pins` for the
// messages it wants kept. Its budget is fixed where the rules or the request say so: the server
// lowers none, the request names a budget and no min_budget, or there is no bound. `least` is never
// below what sinks, pins, and what is named recent and floor need. Throws ApiError 400 where a
// budget is above the ceiling or cannot be met, pins do not fit it, or values contradict each
// other.
BudgetRange resolve_kv(const KvWish& wish, const KvRules& rules, int64_t tokens,
                       std::vector<PositionSpan> pins = {});

}  // namespace coppice
