#include "coppice/eviction/policy.h"

#include <algorithm>

#include "coppice/core/error.h"

namespace coppice {
namespace {

constexpr int64_t kMaxLookahead = 1'000'000;

std::unique_ptr<Scorer> make_scorer(const EvictionConfig& config) {
  if (config.policy == "full") return nullptr;
  if (config.policy == "streaming") return make_streaming_scorer();
  if (config.policy == "knorm") return make_knorm_scorer();
  if (config.policy == "random") return make_random_scorer(config.seed);
  if (config.policy == "trimkv" || config.policy == "dbtrimkv")
    return make_retention_scorer(config.lookahead, config.parity_reference);
  fail(ErrorCode::kInternal, "policy {} has no scorer", config.policy);
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
  if (config.floor > budget)
    fail_argument("eviction: floor must be at most the budget of {}, got {}", budget, config.floor);
}

// The configuration with nothing unset, or an Error.
EvictionConfig resolve(EvictionConfig config, const CacheConfig& cache) {
  validate(cache, /*with_blocks=*/false);
  const PolicyInfo& info = find_policy(config.policy);
  if (!config.scope) config.scope = info.scope;
  if (!config.sinks) config.sinks = config.parity_reference ? 0 : info.default_sinks;
  if (!config.recent) config.recent = config.parity_reference ? 0 : info.default_recent;
  if (*config.sinks < 0 || *config.recent < 0 || config.floor < 0 || config.buffer < 0)
    fail_argument("eviction: sinks {}, recent {}, floor {} and buffer {} must be at least 0",
                  *config.sinks, *config.recent, config.floor, config.buffer);
  if (config.lookahead < 1 || config.lookahead > kMaxLookahead)
    fail_argument("eviction: lookahead must be 1 to {}, got {}", kMaxLookahead, config.lookahead);
  if (config.parity_reference && !info.needs_gate)
    fail_argument("eviction: parity with the reference is for gated policies, not for {}",
                  config.policy);
  if (config.buffer > 0 && !config.parity_reference)
    fail_argument("eviction: a buffer of {} needs parity with the reference", config.buffer);
  if (config.budget_entries != EvictionConfig::kUnbounded) check_budget(config, cache.num_rows());
  return config;
}

}  // namespace

EvictionPolicy::EvictionPolicy(const EvictionConfig& config, const CacheConfig& cache)
    : config_(resolve(config, cache)),
      num_layers_(cache.num_layers),
      num_kv_heads_(cache.num_kv_heads),
      scorer_(make_scorer(config_)),
      memories_(static_cast<std::size_t>(cache.num_rows())) {}

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
  if (!over_trigger(cache.entries(sequence), count) && scope() == Scope::kGlobal) return 0;
  // The pools themselves on the CPU.
  position_pool_ = cache.positions().cpu();
  log_beta_pool_ = cache.log_betas().cpu();
  aux_pool_ = cache.aux().cpu();
  int64_t dropped = 0;
  for (int64_t first = 0; first < count; first += group)
    dropped += evict_group(cache, sequence, first, group);
  return dropped;
}

int64_t EvictionPolicy::evict_group(KvCache& cache, SequenceId sequence, int64_t first_row,
                                    int64_t count) {
  const auto rows = cache.rows(sequence).subspan(static_cast<std::size_t>(first_row),
                                                 static_cast<std::size_t>(count));
  int64_t entries = 0;
  for (const BlockTable& row : rows) entries += row.length;
  if (!over_trigger(entries, count)) return 0;
  const int64_t surplus = entries - config_.budget_entries * count;
  const Contest contest{.positions = position_pool_.const_data_ptr<int32_t>(),
                        .log_betas = log_beta_pool_.const_data_ptr<float>(),
                        .aux = aux_pool_.const_data_ptr<float>(),
                        .form = scorer_->form(),
                        .newest = cache.tokens_seen(sequence) - 1,
                        .sinks = *config_.sinks,
                        .recent = *config_.recent,
                        .floor = config_.floor};
  selector_.select(contest, rows, surplus, memories_[static_cast<std::size_t>(first_row)]);
  drops_.clear();
  for (int64_t r = 0; r < count; ++r) {
    const auto chosen = selector_.chosen(static_cast<std::size_t>(r));
    if (!chosen.empty()) drops_.push_back({first_row + r, chosen});
  }
  cache.drop(sequence, drops_);
  return surplus;
}

void EvictionPolicy::note_appended(KvCache& cache, SequenceId sequence) {
  if (!bounded() || !needs().any()) return;
  COPPICE_CHECK(cache.pass_complete(sequence), "sequence {} has layers that were not appended",
                sequence);
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
