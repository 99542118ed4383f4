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
      scorer_(make_scorer(config_)) {}

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
  int64_t entries = 0;
  for (int64_t r = 0; r < count; ++r)
    entries += cache.rows(sequence)[static_cast<std::size_t>(first_row + r)].length;
  if (!over_trigger(entries, count)) return 0;
  const int64_t surplus = entries - config_.budget_entries * count;
  rank_group(cache, sequence, first_row, count);
  drop(cache, sequence, first_row, choose(surplus));
  return surplus;
}

void EvictionPolicy::rank_group(KvCache& cache, SequenceId sequence, int64_t first_row,
                                int64_t count) {
  const auto rows = cache.rows(sequence).subspan(static_cast<std::size_t>(first_row),
                                                 static_cast<std::size_t>(count));
  const int64_t newest = cache.tokens_seen(sequence) - 1;
  const auto* positions = position_pool_.const_data_ptr<int32_t>();
  const auto* log_betas = log_beta_pool_.const_data_ptr<float>();
  const auto* aux = aux_pool_.const_data_ptr<float>();
  offsets_.assign(1, 0);
  for (const BlockTable& row : rows) offsets_.push_back(offsets_.back() + row.length);
  const auto total = static_cast<std::size_t>(offsets_.back());
  scores_.resize(total);
  ranks_.resize(total);
  positions_.resize(total);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    RowEntries entries;
    entries.layer = (first_row + static_cast<int64_t>(r)) / num_kv_heads_;
    entries.head = (first_row + static_cast<int64_t>(r)) % num_kv_heads_;
    for_each_run(rows[r], 0, rows[r].length, [&](int64_t slot, int64_t index, int64_t n) {
      const auto size = static_cast<std::size_t>(n);
      const auto at = static_cast<std::size_t>(offsets_[r] + index);
      entries.positions = {positions + slot, size};
      entries.log_beta = {log_betas + slot, size};
      entries.aux = {aux + slot, size};
      scorer_->score(entries, newest, std::span(scores_).subspan(at, size));
      std::copy(entries.positions.begin(), entries.positions.end(),
                positions_.begin() + static_cast<std::ptrdiff_t>(at));
    });
  }
  score_ranks(scores_, ranks_);
  // Positions are below 2^31, so the clamped borders mean the same.
  const auto sinks = static_cast<int32_t>(std::min<int64_t>(*config_.sinks, INT32_MAX));
  const auto recent = static_cast<int32_t>(std::max<int64_t>(newest + 1 - *config_.recent, 0));
  for (std::size_t i = 0; i < total; ++i) {
    const bool safe = positions_[i] < sinks || positions_[i] >= recent;
    ranks_[i] = safe ? kProtectedRank : ranks_[i];
  }
}

// Where each row of the last choice keeps at least its floor, that choice is the answer: a row's
// best `floor` entries are among what it keeps. Else the short rows' best are protected first.
std::span<const int64_t> EvictionPolicy::choose(int64_t count) {
  const std::size_t rows = offsets_.size() - 1;
  while (true) {
    const auto lowest = selector_.lowest({ranks_, positions_, offsets_}, count);
    if (config_.floor == 0) return lowest;
    kept_.assign(rows, 0);
    std::size_t next = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t before = next;
      while (next < lowest.size() && lowest[next] < offsets_[r + 1]) ++next;
      kept_[r] =
          static_cast<int32_t>(offsets_[r + 1] - offsets_[r] - static_cast<int64_t>(next - before));
    }
    bool changed = false;
    for (std::size_t r = 0; r < rows; ++r) {
      const int64_t length = offsets_[r + 1] - offsets_[r];
      if (kept_[r] >= std::min(config_.floor, length)) continue;
      changed = true;
      const auto first = static_cast<std::size_t>(offsets_[r]);
      const auto size = static_cast<std::size_t>(length);
      const int64_t whole[] = {0, length};
      const auto losers = row_selector_.lowest({std::span(ranks_).subspan(first, size),
                                                std::span(positions_).subspan(first, size), whole},
                                               std::max<int64_t>(length - config_.floor, 0));
      auto loser = losers.begin();
      for (std::size_t i = 0; i < size; ++i) {
        if (loser != losers.end() && *loser == static_cast<int64_t>(i))
          ++loser;
        else
          ranks_[first + i] = kProtectedRank;
      }
    }
    if (!changed) return lowest;
  }
}

void EvictionPolicy::drop(KvCache& cache, SequenceId sequence, int64_t first_row,
                          std::span<const int64_t> indices) {
  std::size_t next = 0;
  for (std::size_t r = 0; r + 1 < offsets_.size() && next < indices.size(); ++r) {
    places_.clear();
    for (; next < indices.size() && indices[next] < offsets_[r + 1]; ++next)
      places_.push_back(static_cast<int32_t>(indices[next] - offsets_[r]));
    const int64_t row = first_row + static_cast<int64_t>(r);
    cache.drop(sequence, row / num_kv_heads_, row % num_kv_heads_, places_);
  }
}

void EvictionPolicy::note_appended(KvCache& cache, SequenceId sequence) {
  if (!bounded() || (!needs().gate && !needs().key_norm)) return;
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
    const auto row = static_cast<int64_t>(r);
    if (read_keys)
      cache.read_keys(sequence, row / num_kv_heads_, row % num_kv_heads_, first, tokens, keys);
    for (int64_t t = 0; t < tokens; ++t) {
      std::span<const float> key;
      if (read_keys)
        key = std::span(keys).subspan(static_cast<std::size_t>(t * width),
                                      static_cast<std::size_t>(width));
      values[static_cast<std::size_t>(t)] = scorer_->aux(log_betas[rows[r].slot(first + t)], key);
    }
    cache.set_aux(sequence, row / num_kv_heads_, row % num_kv_heads_, first, values);
  }
}

}  // namespace coppice
