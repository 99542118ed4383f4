// Which entries stay: a scorer (what an entry is worth) x a scope (who competes with whom) x a
// budget.
//
// Source: arXiv:2605.09649, section on global eviction; scores in docs/maths.md. Differs from the
// published code: the budget holds after every pass (no buffer on top), ties are broken by rule,
// protected entries count inside the budget and are chosen by membership, not by a large score.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/cache/kv_cache.h"

namespace coppice {

enum class Scope {
  kHead,    // each row keeps its own `budget` entries
  kLayer,   // the rows of a layer compete for budget x Hkv
  kGlobal,  // all rows of the sequence compete for budget x L x Hkv
};

// What a scorer reads besides positions. A policy that needs nothing pays nothing.
struct ScorerNeeds {
  bool gate = false;      // log_beta must come from a gate
  bool key_norm = false;  // aux holds the norm of the key, written at append
};

// One row's entries, in row order.
struct RowEntries {
  int64_t layer = 0;
  int64_t head = 0;
  std::span<const int32_t> positions;
  std::span<const float> log_beta;
  std::span<const float> aux;
};

class Scorer {
 public:
  virtual ~Scorer() = default;
  virtual std::string_view name() const = 0;
  virtual ScorerNeeds needs() const = 0;
  // The number to keep per entry in aux, from its log_beta and key. k [D].
  virtual float aux(float log_beta, std::span<const float> key) const;
  // Higher is kept. `newest` is the position of the newest token. scores has positions.size()
  // places.
  virtual void score(const RowEntries& entries, int64_t newest, std::span<float> scores) const = 0;
};

struct EvictionConfig {
  std::string policy = "dbtrimkv";
  // Mean entries per row. kUnbounded: nothing is ever evicted.
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
  int64_t budget_entries = kUnbounded;
  int64_t sinks = 4;      // first tokens of the sequence, always kept
  int64_t recent = 0;     // newest tokens, always kept
  int64_t floor = 0;      // best entries each row keeps whatever the others hold
  int64_t lookahead = 2;  // n of the retention score
};

class EvictionPolicy final {
 public:
  // Validates the configuration against the model's sizes; throws kInvalidArgument or kNotFound.
  EvictionPolicy(const EvictionConfig& config, const CacheConfig& cache);

  const EvictionConfig& config() const;
  std::string_view name() const;
  ScorerNeeds needs() const;
  Scope scope() const;
  bool bounded() const;
  // Entries a sequence may hold after a pass: budget x L x Hkv.
  int64_t budget_total() const;

  // After a pass has been committed: brings the sequence down to its budget. Returns entries
  // dropped. REQUIRES: cache.tokens_in_pass(sequence) == 0.
  int64_t evict(KvCache& cache, SequenceId sequence);
  // Writes aux for the entries appended by the pass in progress, before commit. No-op where not
  // needed.
  void note_appended(KvCache& cache, SequenceId sequence);
};

// Every policy by name, for help texts and for tests that walk the whole table.
struct PolicyInfo {
  std::string name;
  std::string summary;  // one line
  Scope scope;
  bool needs_gate;
};
const std::vector<PolicyInfo>& policies();

}  // namespace coppice
