// What a policy costs: how fast a prompt is read and tokens are written under it, and the memory.
//
// The same prompt is read in chunks and continued greedily for a fixed number of tokens, alone in
// the engine. Each item is a repetition of all settings, so that a machine that slows down slows
// all of them; medians are reported. Rates are of this machine and its load.
#pragma once

#include <vector>

#include "coppice/eval/eval_task.h"

namespace coppice {

struct CostOptions {
  int64_t new_tokens = 64;
  int64_t repeats = 3;
};

class CostTask final : public EvalTask {
 public:
  // Throws kInvalidArgument for an empty prompt or options out of range.
  CostTask(const EvalModel& model, std::vector<int32_t> prompt, const CostOptions& options);

  std::string_view name() const override { return "cost"; }
  Json config() const override;
  int64_t items() const override { return options_.repeats; }
  std::vector<Json> keys(int64_t item) const override { return {Json{{"repeat", item}}}; }
  int64_t tokens(int64_t) const override;
  // "prefill_tokens_per_s", "decode_tokens_per_s", "evict_share", "kept_entries", "bytes_peak",
  // "bytes_bound"
  std::vector<Json> run(int64_t item, const EvictionConfig& eviction) override;
  std::vector<std::string> outcome() const override { return {"kept_entries"}; }
  // Medians of the same fields, one object a setting.
  Json summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const override;
  std::string table(const Json& summary) const override;

 private:
  EvalModel model_;
  std::vector<int32_t> prompt_;
  CostOptions options_;
  bool warm_ = false;
};

}  // namespace coppice
