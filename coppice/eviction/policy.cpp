#include "coppice/eviction/policy.h"

#include <ATen/TensorOperators.h>

#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/eviction/scorer_makers.h"

namespace coppice {
namespace {

constexpr int64_t kMaxLookahead = 1'000'000;

// Of the pinned tokens, those that are no sinks.
int64_t pinned_beside_sinks(const EvictionConfig& config) {
  return pinned_tokens(config.pins) - pinned_tokens(clip_pins(config.pins, *config.sinks));
}

void check_budget(const EvictionConfig& config, int64_t rows) {
  const int64_t budget = config.budget_entries;
  if (budget < 1)
    fail_argument("eviction: budget must be at least 1 entry per KV head, got {}", budget);
  if (config.policy == "full")
    fail_argument("eviction: policy full takes no budget, got {}; choose a policy that evicts",
                  budget);
  if (budget > EvictionConfig::kUnbounded / 2 / rows ||
      config.buffer > EvictionConfig::kUnbounded / 2 / rows)
    fail_argument("eviction: a budget of {} + {} entries in each of {} rows cannot be counted",
                  budget, config.buffer, rows);
  if (*config.sinks > budget || *config.recent > budget - *config.sinks)
    fail_argument("eviction: {} sinks and {} recent entries do not fit a budget of {}",
                  *config.sinks, *config.recent, budget);
  const int64_t pinned = pinned_beside_sinks(config);
  if (pinned > budget - *config.sinks - *config.recent)
    fail_argument(
        "eviction: {} pinned tokens beside {} sinks and {} recent ones do not fit a budget of {} "
        "entries per KV head; expected at most {} of them",
        pinned, *config.sinks, *config.recent, budget, budget - *config.sinks - *config.recent);
  if (*config.floor > budget)
    fail_argument("eviction: floor must be at most the budget of {}, got {}", budget,
                  *config.floor);
}

// Newest entries to keep safe where the user does not say: what the scorer wants, at most half the
// budget and what sinks and pins leave of it.
int64_t default_recent(const EvictionConfig& config, const Scorer* scorer) {
  if (config.parity_reference || scorer == nullptr) return 0;
  const int64_t budget = config.budget_entries;
  return std::max<int64_t>(0, std::min({scorer->default_recent(), budget / 2,
                                        budget - *config.sinks - pinned_beside_sinks(config)}));
}

// The configuration with nothing unset, and its scorer, or an Error.
std::unique_ptr<Scorer> resolve(EvictionConfig& config, const CacheConfig& cache) {
  validate(cache, /*with_blocks=*/false);
  const PolicyInfo& info = find_policy(config.policy);
  if (info.fixed_scope && config.scope && *config.scope != info.scope)
    fail_argument("eviction: policy {} has a scope of its own and takes no other", config.policy);
  if (!config.scope) config.scope = info.scope;
  if (!config.sinks) config.sinks = config.parity_reference ? 0 : info.default_sinks;
  config.pins = merge_pins(std::move(config.pins));
  ScorerSettings settings{config, cache, ScorerOptions(config.policy, config.options)};
  std::unique_ptr<Scorer> scorer = info.make == nullptr ? nullptr : info.make(settings);
  config.options = settings.options.finish();
  if (!config.recent) config.recent = default_recent(config, scorer.get());
  if (!config.floor)
    config.floor = config.parity_reference
                       ? 0
                       : std::clamp<int64_t>(config.budget_entries / 2, 0, info.default_floor);
  if (*config.sinks < 0 || *config.recent < 0 || *config.floor < 0 || config.buffer < 0)
    fail_argument("eviction: sinks {}, recent {}, floor {} and buffer {} must be at least 0",
                  *config.sinks, *config.recent, *config.floor, config.buffer);
  if (config.lookahead < 1 || config.lookahead > kMaxLookahead)
    fail_argument("eviction: lookahead must be 1 to {}, got {}", kMaxLookahead, config.lookahead);
  if (config.parity_reference && info.gate != "retention")
    fail_argument("eviction: parity with the reference is for retention gates, not for {}",
                  config.policy);
  if (config.buffer > 0 && !config.parity_reference)
    fail_argument("eviction: a buffer of {} needs parity with the reference", config.buffer);
  if (config.budget_entries != EvictionConfig::kUnbounded) check_budget(config, cache.num_rows());
  return scorer;
}

}  // namespace

EvictionPolicy::EvictionPolicy(const EvictionConfig& config, const CacheConfig& cache)
    : config_(config),
      num_layers_(cache.num_layers),
      num_kv_heads_(cache.num_kv_heads),
      scorer_(resolve(config_, cache)),
      memories_(static_cast<std::size_t>(cache.num_rows())) {}

void EvictionPolicy::check_gate_kind(std::string_view kind) const {
  const std::string_view wanted = needs().gate;
  if (wanted.empty() || wanted == kind) return;
  fail_argument("policy {} needs a {} gate, and this model has {}", name(), wanted,
                kind.empty() ? "none" : fmt::format("a {} gate", kind));
}

int64_t EvictionPolicy::budget_total() const {
  return bounded() ? config_.budget_entries * num_layers_ * num_kv_heads_
                   : EvictionConfig::kUnbounded;
}

int64_t EvictionPolicy::bound_total() const {
  if (!bounded() || config_.buffer == 0) return budget_total();
  return (config_.budget_entries + config_.buffer) * num_layers_ * num_kv_heads_ - 1;
}

bool EvictionPolicy::over_trigger(int64_t entries, int64_t rows) const {
  if (entries <= config_.budget_entries * rows) return false;
  return entries >= (config_.budget_entries + config_.buffer) * rows;
}

int64_t EvictionPolicy::evict(KvCache& cache, SequenceId sequence) {
  const std::span<const BlockTable> rows = cache.rows(sequence);
  const auto count = static_cast<int64_t>(rows.size());
  COPPICE_CHECK(count == num_layers_ * num_kv_heads_, "policy for {} rows, cache of {}",
                num_layers_ * num_kv_heads_, count);
  COPPICE_CHECK(cache.tokens_in_pass(sequence) == 0, "sequence {} has a pass in progress",
                sequence);
  if (!bounded()) return 0;
  const int64_t group = scope() == Scope::kHead    ? 1
                        : scope() == Scope::kLayer ? num_kv_heads_
                                                   : count;
  if (fills_budget() && !any_over_trigger(rows, group)) return 0;
  if (needs().rescored) scorer_->judge(SequenceView(cache, sequence), *config_.sinks);
  // The pools themselves on the CPU.
  position_pool_ = cache.positions().cpu();
  log_beta_pool_ = cache.log_betas().cpu();
  aux_pool_ = cache.aux().cpu();
  int64_t dropped = 0;
  for (int64_t first = 0; first < count; first += group)
    dropped += evict_group(cache, sequence, first, group);
  return dropped;
}

bool EvictionPolicy::any_over_trigger(std::span<const BlockTable> rows, int64_t group) const {
  const auto count = static_cast<int64_t>(rows.size());
  for (int64_t first = 0; first < count; first += group) {
    int64_t entries = 0;
    for (int64_t r = first; r < first + group; ++r)
      entries += rows[static_cast<std::size_t>(r)].length;
    if (over_trigger(entries, group)) return true;
  }
  return false;
}

// Entries that have to go, of the rows of a group.
int64_t EvictionPolicy::surplus_of(const Contest& contest, std::span<const BlockTable> rows,
                                   int64_t first_row) {
  const auto count = static_cast<int64_t>(rows.size());
  int64_t entries = 0;
  for (const BlockTable& row : rows) entries += row.length;
  const int64_t over = over_trigger(entries, count) ? entries - config_.budget_entries * count : 0;
  if (fills_budget()) return over;
  return std::max(over, selector_.count_below(contest, rows, *scorer_->threshold(),
                                              memories_[static_cast<std::size_t>(first_row)]));
}

int64_t EvictionPolicy::evict_group(KvCache& cache, SequenceId sequence, int64_t first_row,
                                    int64_t count) {
  const auto rows = cache.rows(sequence).subspan(static_cast<std::size_t>(first_row),
                                                 static_cast<std::size_t>(count));
  const Contest contest{.positions = position_pool_.const_data_ptr<int32_t>(),
                        .log_betas = log_beta_pool_.const_data_ptr<float>(),
                        .aux = aux_pool_.const_data_ptr<float>(),
                        .form = scorer_->form(),
                        .newest = cache.tokens_seen(sequence) - 1,
                        .sinks = *config_.sinks,
                        .recent = *config_.recent,
                        .pins = config_.pins,
                        .floor = *config_.floor};
  const int64_t surplus = surplus_of(contest, rows, first_row);
  if (surplus == 0) return 0;
  drops_.clear();
  planned_.clear();
  if (scorer_->plans()) {
    plan_group(SequenceView(cache, sequence), first_row, rows);
    planned_.reserve(rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r)
      if (keep_[r] < rows[r].length)
        choose(contest, rows.subspan(r, 1), first_row + static_cast<int64_t>(r),
               rows[r].length - keep_[r]);
  } else {
    choose(contest, rows, first_row, surplus);
  }
  cache.drop(sequence, drops_);
  return surplus;
}

// Adds what goes of these rows to drops_. Rows chosen one by one need copies: the selector's result
// ends with its next call.
void EvictionPolicy::choose(const Contest& contest, std::span<const BlockTable> rows,
                            int64_t first_row, int64_t surplus) {
  selector_.select(contest, rows, surplus, memories_[static_cast<std::size_t>(first_row)]);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::span<const int32_t> places = selector_.chosen(r);
    if (places.empty()) continue;
    if (scorer_->plans()) places = planned_.emplace_back(places.begin(), places.end());
    drops_.push_back({first_row + static_cast<int64_t>(r), places});
  }
}

// Sets keep_.
void EvictionPolicy::plan_group(const SequenceView& view, int64_t first_row,
                                std::span<const BlockTable> rows) {
  const int64_t total = config_.budget_entries * static_cast<int64_t>(rows.size());
  const int64_t safe =
      safe_tokens(*config_.sinks, *config_.recent, config_.pins, view.tokens_seen());
  lengths_.clear(), least_.clear(), keep_.assign(rows.size(), 0);
  for (const BlockTable& row : rows) {
    lengths_.push_back(row.length);
    least_.push_back(std::min(row.length, std::max(*config_.floor, safe)));
  }
  scorer_->plan(view, {.first_row = first_row,
                       .total = total,
                       .sinks = *config_.sinks,
                       .safe_from = view.tokens_seen() - *config_.recent,
                       .pins = config_.pins,
                       .safe = safe,
                       .lengths = lengths_,
                       .least = least_,
                       .keep = keep_});
  int64_t sum = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    COPPICE_CHECK(keep_[r] >= least_[r] && keep_[r] <= lengths_[r], "a plan of {} for {} to {}",
                  keep_[r], least_[r], lengths_[r]);
    sum += keep_[r];
  }
  COPPICE_CHECK(sum == total, "a plan for {} entries, not {}", sum, total);
}

void EvictionPolicy::observe(KvCache& cache, SequenceId sequence, const PassQueries& pass,
                             double scale) {
  if (!bounded() || !needs().queries) return;
  PassQueries scaled = pass;
  scaled.q = pass.q.to(at::kCPU, at::kFloat) * scale;
  scorer_->observe(SequenceView(cache, sequence), scaled);
}

void EvictionPolicy::note_appended(KvCache& cache, SequenceId sequence) {
  if (!bounded() || !(needs().entry_aux() || needs().queries)) return;
  COPPICE_CHECK(cache.pass_complete(sequence), "sequence {} has layers that were not appended",
                sequence);
  if (needs().entry_aux()) write_entry_aux(cache, sequence);
  if (needs().queries) scorer_->note(SequenceView(cache, sequence));
}

void EvictionPolicy::write_entry_aux(KvCache& cache, SequenceId sequence) {
  const int64_t tokens = cache.tokens_in_pass(sequence);
  const int64_t width = cache.config().head_dim;
  const bool read_keys = needs().key_norm;
  const at::Tensor log_beta_pool = cache.log_betas().cpu();
  const auto* log_betas = log_beta_pool.const_data_ptr<float>();
  std::vector<float> values(static_cast<std::size_t>(tokens)), keys;
  const std::span<const BlockTable> rows = cache.rows(sequence);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const int64_t first = rows[r].length - tokens;
    ScoredEntry entry{.layer = static_cast<int64_t>(r) / num_kv_heads_,
                      .head = static_cast<int64_t>(r) % num_kv_heads_,
                      .position = cache.tokens_seen(sequence)};
    if (read_keys) cache.read_keys(sequence, entry.layer, entry.head, first, tokens, keys);
    for (int64_t t = 0; t < tokens; ++t, ++entry.position) {
      if (read_keys)
        entry.key = std::span(keys).subspan(static_cast<std::size_t>(t * width),
                                            static_cast<std::size_t>(width));
      entry.log_beta = log_betas[rows[r].slot(first + t)];
      values[static_cast<std::size_t>(t)] = scorer_->aux(entry);
    }
    cache.set_aux(sequence, entry.layer, entry.head, first, values);
  }
}

}  // namespace coppice
