#include "coppice/study/cost_task.h"

#include <algorithm>
#include <array>

#include "coppice/core/error.h"
#include "coppice/engine/engine.h"
#include "coppice/eval/eval_engine.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/figures.h"
#include "coppice/models/model.h"

namespace coppice {
namespace {

constexpr std::array kFields = {"prefill_tokens_per_s", "decode_tokens_per_s", "evict_share",
                                "kept_entries",         "bytes_peak",          "bytes_bound"};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

RequestOutput run_once(const EvalModel& base, const std::vector<int32_t>& prompt,
                       int64_t new_tokens, const EvictionConfig& eviction) {
  Engine engine(base.model,
                eval_engine(base, eviction, static_cast<int64_t>(prompt.size()) + new_tokens));
  Request request;
  request.prompt = prompt;
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = new_tokens;
  request.sampling.ignore_eos = true;
  return engine.run(request);
}

}  // namespace

CostTask::CostTask(const EvalModel& model, std::vector<int32_t> prompt, const CostOptions& options)
    : model_(model), prompt_(std::move(prompt)), options_(options) {
  if (prompt_.empty()) fail_argument("cost: the prompt is empty");
  if (options.new_tokens < 2 || options.repeats < 1)
    fail_argument("cost: expected at least 2 new tokens and 1 repetition, got {} and {}",
                  options.new_tokens, options.repeats);
}

Json CostTask::config() const {
  return {{"prompt_tokens", prompt_.size()}, {"new_tokens", options_.new_tokens}};
}

int64_t CostTask::tokens(int64_t) const {
  return static_cast<int64_t>(prompt_.size()) + options_.new_tokens;
}

std::vector<Json> CostTask::run(int64_t, const EvictionConfig& eviction) {
  if (!warm_) run_once(model_, prompt_, 2, {.policy = "full"});
  warm_ = true;
  const Usage usage = run_once(model_, prompt_, options_.new_tokens, eviction).usage;
  return {Json{{"prefill_tokens_per_s", usage.timing.prefill_tokens_per_s},
               {"decode_tokens_per_s", usage.timing.decode_tokens_per_s},
               {"evict_share", usage.timing.evict_share},
               {"kept_entries", usage.kv.kept_entries},
               {"bytes_peak", usage.kv.bytes_peak},
               {"bytes_bound", usage.kv.bytes_bound}}};
}

Json CostTask::summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const {
  Json all = Json::array();
  for (const EvictionConfig& eviction : settings) {
    Json summary = setting_key(eviction);
    int64_t repeats = 0;
    for (const char* field : kFields) {
      std::vector<double> values;
      for (int64_t item = 0; item < items(); ++item)
        if (const Json* row = rows.find(keys(item).front(), eviction))
          values.push_back(row->at(field).get<double>());
      repeats = static_cast<int64_t>(values.size());
      if (repeats > 0) summary[field] = median(values);
    }
    summary["repeats"] = repeats;
    if (repeats > 0) all.push_back(std::move(summary));
  }
  return all;
}

std::string CostTask::table(const Json& summary) const {
  std::string text = fmt::format("{:<20} {:>7}  {:>10}  {:>9}  {:>9}  {:>11}\n", "policy", "budget",
                                 "read tok/s", "wrote t/s", "evicting", "peak bytes");
  for (const Json& row : summary)
    text += fmt::format("{:<20} {:>7}  {:>10.0f}  {:>9.0f}  {:>8.1f}%  {:>11.0f}\n",
                        row["policy"].get<std::string>(), budget_text(row),
                        row["prefill_tokens_per_s"].get<double>(),
                        row["decode_tokens_per_s"].get<double>(),
                        100 * row["evict_share"].get<double>(), row["bytes_peak"].get<double>());
  return text;
}

}  // namespace coppice
