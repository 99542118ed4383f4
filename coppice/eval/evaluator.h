// Runs a task under a grid of policies and budgets, row by row into a file, and goes on where the
// file ends.
//
// The full cache is always there and comes first. So is a budget that nothing exceeds: of the item
// with the fewest tokens every policy is also run with a budget of as many, unless the grid has
// one. Wherever a budget is at least an item's tokens, the outcome must be that of the full cache,
// to the last bit, but for policies with a threshold; a difference is an Error (kInternal), for
// rows already in the file too.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/cache/cache_config.h"
#include "coppice/eval/eval_task.h"
#include "coppice/eval/record_file.h"

namespace coppice {

// The full cache, then every policy with every budget; nothing is named twice. A policy is named as
// in policy_choice.h, so one may stand there with several settings. `base` has what they share:
// sinks, recent, floor, lookahead and seed. Throws kInvalidArgument and kNotFound as
// parse_policy_choice and EvictionPolicy, and for a policy whose kind of gate is not `gate_kind`.
std::vector<EvictionConfig> eval_settings(const std::vector<std::string>& policies,
                                          const std::vector<int64_t>& budgets,
                                          const EvictionConfig& base, const CacheConfig& cache,
                                          std::string_view gate_kind);

// {"policy": with its own settings, as policy_choice_name, "budget": entries per head, or null
// where there is none}
Json setting_key(const EvictionConfig& eviction);
// {"options": what is in force, the policy's own included, "budget_bytes": of as many entries in
// all rows, or null}
Json setting_details(const EvictionConfig& eviction, const CacheConfig& cache);

// The rows of a file, found by what names them.
class RowTable final {
 public:
  // key_fields: those of the task's keys.
  RowTable(const EvalTask& task, const std::vector<Json>& rows);

  // Null where there is none. Valid until the next add().
  const Json* find(const Json& key, const EvictionConfig& eviction) const;
  void add(const Json& row);

 private:
  std::vector<std::string> fields_;
  std::map<std::string, Json> rows_;
};

struct EvalProgress {
  int64_t rows = 0;  // there are, those of an earlier run included
  int64_t rows_in_all = 0;
  int64_t tokens = 0;  // read in this run
  int64_t tokens_in_all = 0;
  double seconds = 0.0;  // of this run
};

// Fills `file` with what it lacks and returns all its rows. A row has the key, the setting, its
// details, what was found, seconds, and the file's configuration, so that it stands for itself.
// settings: from eval_settings. config: what the file was opened with.
RowTable run_evaluation(EvalTask& task, const std::vector<EvictionConfig>& settings,
                        const CacheConfig& cache, const Json& config, RecordFile& file,
                        const std::function<void(const EvalProgress&)>& progress = {});

}  // namespace coppice
