// Which entries stay: a scorer (what an entry is worth) x a scope (who competes with whom) x a
// budget.
//
// After every pass the entries that compete are brought down to their budget exactly, in this
// order:
//   1. protected ones stay: the first `sinks` tokens of the sequence, the newest `recent` ones, and
//      those of pinned positions;
//   2. then what brings a row to `floor` entries (protected ones counted): its best;
//   3. then the best of all the rest.
// A scorer with a threshold (KVzap's) lets entries below it go that 1 and 2 do not keep, even where
// the budget has room.
// Ties: newer position first, then lower layer, then lower head, for every policy.
// A policy with a plan (PyramidKV, AdaKV) divides a group's budget among its rows first, to the
// entry; each row then keeps its best. All policies hold the same number of entries.
// A row may be left with nothing; the next token is appended before it is attended over.
// Fewer entries than the budget, and no threshold: nothing is dropped.
//
// Source: arXiv:2605.09649, section on global eviction; scores in docs/maths.md. Differs from the
// published code: the budget holds after every pass (no buffer on top), ties are broken by rule,
// protected entries count inside the budget and are chosen by membership, not by a large score.
// `parity_reference` restores that code's ages, buffer and trigger.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/cache/kv_cache.h"
#include "coppice/eviction/pins.h"
#include "coppice/eviction/scorer_options.h"
#include "coppice/eviction/scorers.h"
#include "coppice/eviction/selection.h"

namespace coppice {

enum class Scope {
  kHead,    // each row keeps its own `budget` entries
  kLayer,   // the rows of a layer compete for budget x Hkv
  kGlobal,  // all rows of the sequence compete for budget x L x Hkv
};

struct EvictionConfig {
  std::string policy = "dbtrimkv";
  // Mean entries per row, at least 1. kUnbounded: nothing is ever evicted.
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
  int64_t budget_entries = kUnbounded;
  // Tokens that are always kept, inside the budget; sinks + recent may not exceed it. Unset: what
  // the policy's row in policies() says for sinks and its scorer for recent, of which at most half
  // the budget is taken; 0 with parity_reference.
  std::optional<int64_t> sinks = std::nullopt;
  std::optional<int64_t> recent = std::nullopt;
  // Entries each row keeps whatever the others hold; <= budget. Unset: what the policy's row says,
  // at most half the budget; 0 with parity_reference.
  std::optional<int64_t> floor = std::nullopt;
  int64_t lookahead = 2;                      // n of the retention score, for gated policies
  uint64_t seed = 0;                          // of policy random
  std::optional<Scope> scope = std::nullopt;  // unset: the policy's own
  // Gated policies as the published code runs them: evict when budget + buffer is reached, down to
  // the budget; ages as in make_retention_scorer.
  bool parity_reference = false;
  int64_t buffer = 0;  // entries per row; needs parity_reference
  // The policy's own settings by name. What it does not know is refused.
  OptionMap options = {};
  // Positions whose entries are never evicted, in any row; they count in the budget, and together
  // with sinks and recent may not exceed it. Positions that were not read yet hold when they are.
  std::vector<PositionSpan> pins = {};

  bool operator==(const EvictionConfig&) const = default;
};

struct ScorerSettings;

// Every policy by name, for help texts and for tests that walk the whole table.
struct PolicyInfo {
  std::string name;
  std::string summary;  // one line
  Scope scope;
  std::string_view gate;  // the kind that it reads, as gate files name it; empty: none
  int64_t default_sinks;
  std::unique_ptr<Scorer> (*make)(ScorerSettings&);  // null: nothing is ever evicted
  bool fixed_scope = false;                          // no other scope makes sense
  int64_t default_floor = 0;
};
const std::vector<PolicyInfo>& policies();
const PolicyInfo& find_policy(std::string_view name);  // throws kNotFound, with the names there are
// Names of those that a model can run whose gates are of this kind; empty: it has none.
std::vector<std::string> policies_for(std::string_view gate_kind);

// The policy of a model whose gates are of this kind; streaming where it has none (empty).
std::string default_policy(std::string_view gate_kind);

class EvictionPolicy final {
 public:
  // Validates the configuration against the model's sizes; throws kInvalidArgument or kNotFound.
  // "full" takes no budget.
  EvictionPolicy(const EvictionConfig& config, const CacheConfig& cache);

  const EvictionConfig& config() const { return config_; }  // nothing in it is unset
  std::string_view name() const { return config_.policy; }
  ScorerNeeds needs() const { return scorer_ ? scorer_->needs() : ScorerNeeds{}; }
  Scope scope() const { return *config_.scope; }
  bool bounded() const { return config_.budget_entries != EvictionConfig::kUnbounded; }
  // Whether entries go only where they exceed the budget: a policy with a threshold may hold fewer.
  bool fills_budget() const { return !scorer_ || !scorer_->threshold(); }
  // Throws kInvalidArgument where the policy reads gates and a model's are of another kind than its
  // own, or the model has none (empty).
  void check_gate_kind(std::string_view kind) const;
  // Entries a sequence is brought down to: budget x L x Hkv.
  int64_t budget_total() const;
  // Most entries a sequence may hold after a pass: the same, and one below the trigger with a
  // buffer.
  int64_t bound_total() const;

  // Shows the scorer one layer's queries of the pass in progress, after that layer was appended.
  // pass.q is taken as rotated, [T, Hq, D] of any type, and multiplied by `scale`. No-op where
  // needs() does not name queries.
  void observe(KvCache& cache, SequenceId sequence, const PassQueries& pass, double scale);

  // After a pass has been committed: brings the sequence down to its budget. Returns entries
  // dropped. REQUIRES: cache.tokens_in_pass(sequence) == 0, and the sizes given at construction.
  int64_t evict(KvCache& cache, SequenceId sequence);
  // Writes aux for the entries appended by the pass in progress, and takes over what it was shown,
  // before commit. No-op where not needed. REQUIRES: every layer was appended.
  void note_appended(KvCache& cache, SequenceId sequence);

 private:
  int64_t evict_group(KvCache& cache, SequenceId sequence, int64_t first_row, int64_t count);
  int64_t surplus_of(const Contest& contest, std::span<const BlockTable> rows, int64_t first_row);
  bool over_trigger(int64_t entries, int64_t rows) const;
  bool any_over_trigger(std::span<const BlockTable> rows, int64_t group) const;
  void write_entry_aux(KvCache& cache, SequenceId sequence);
  void plan_group(const SequenceView& view, int64_t first_row, std::span<const BlockTable> rows);
  void choose(const Contest& contest, std::span<const BlockTable> rows, int64_t first_row,
              int64_t surplus);

  EvictionConfig config_;
  int64_t num_layers_, num_kv_heads_;
  std::unique_ptr<Scorer> scorer_;  // none: full

  // Scratch of one call.
  at::Tensor position_pool_, log_beta_pool_, aux_pool_;
  Selector selector_;
  std::vector<RowDrop> drops_;
  std::vector<std::vector<int32_t>> planned_;  // places to drop, of rows chosen one by one
  std::vector<int64_t> lengths_, least_, keep_;

  std::vector<SelectionMemory> memories_;  // [rows], by the first row of a group
};

}  // namespace coppice
