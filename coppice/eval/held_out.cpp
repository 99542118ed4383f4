#include "coppice/eval/held_out.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/figures.h"
#include "coppice/eval/perplexity.h"
#include "coppice/models/model.h"

namespace coppice {
HeldOutTask::HeldOutTask(const EvalModel& model, std::vector<EvalDocument> documents,
                         const HeldOutOptions& options)
    : model_(model), documents_(std::move(documents)), options_(options) {
  const int64_t range = model.model->args().max_position_embeddings;
  for (const int64_t context : options_.contexts)
    if (context > range)
      fail(ErrorCode::kCapacity,
           "held-out text: a context of {} tokens passes the model's {} positions", context, range);
  items_ = choose_parts("held-out text", documents_, options_.contexts, options_.documents);
}

std::vector<Json> HeldOutTask::keys(int64_t item) const {
  return {Json{{"document", documents_[at(item).document].number}, {"context", at(item).context}}};
}

int64_t HeldOutTask::tokens(int64_t item) const { return at(item).context; }

std::vector<Json> HeldOutTask::run(int64_t item, const EvictionConfig& eviction) {
  const EvalDocument& document = documents_[at(item).document];
  PerplexityOptions options;
  options.context_tokens = at(item).context;
  options.eviction = eviction;
  options.chunk_tokens = model_.chunk_tokens;
  options.kv_dtype = model_.kv_dtype;
  const auto ids =
      std::span(document.tokens).first(static_cast<std::size_t>(options.context_tokens));
  const PerplexityResult result = evaluate_perplexity(*model_.model, ids, options);
  return {Json{{"id", document.id},
               {"source", document.source},
               {"nll", result.mean_nll * static_cast<double>(result.scored_tokens)},
               {"scored_tokens", result.scored_tokens},
               {"kept_entries", result.kept_entries},
               {"evicted_entries", result.evicted_entries},
               {"peak_entries", result.peak_entries},
               {"bytes_peak", result.bytes_peak},
               {"bytes_bound", result.bytes_bound}}};
}

Json HeldOutTask::summary_of(const RowTable& rows, int64_t context,
                             const EvictionConfig& eviction) const {
  Quotient difference;  // of NLLs, per token
  double nll = 0.0, full_nll = 0.0, tokens = 0.0;
  int64_t bytes = 0;
  for (int64_t item = 0; item < items(); ++item) {
    if (at(item).context != context) continue;
    const Json key = keys(item).front();
    const Json* ours = rows.find(key, eviction);
    const Json* full = rows.find(key, {.policy = "full"});
    if (ours == nullptr || full == nullptr) continue;
    const double mine = ours->at("nll"), theirs = full->at("nll"), of = ours->at("scored_tokens");
    difference.add(mine - theirs, of);
    nll += mine;
    full_nll += theirs;
    tokens += of;
    bytes = std::max(bytes, ours->at("bytes_peak").get<int64_t>());
  }
  if (difference.items() == 0) return Json();
  const auto ratio = [&](std::span<const int64_t> weights) {
    return std::exp(difference.value(weights));
  };
  const auto interval =
      bootstrap_interval(static_cast<int64_t>(difference.items()), ratio, {.seed = options_.seed});
  Json summary = setting_key(eviction);
  summary["context"] = context;
  summary["documents"] = difference.items();
  summary["scored_tokens"] = tokens;
  summary["perplexity"] = std::exp(nll / tokens);
  summary["full_perplexity"] = std::exp(full_nll / tokens);
  summary["ratio"] = ratio({});
  summary["ratio_interval"] = interval_json(interval);
  summary["bytes_peak"] = bytes;
  return summary;
}

Json HeldOutTask::summarise(const RowTable& rows,
                            const std::vector<EvictionConfig>& settings) const {
  return summarise_by_context(
      options_.contexts, settings,
      [&](int64_t context, const auto& eviction) { return summary_of(rows, context, eviction); });
}

std::string HeldOutTask::table(const Json& summary) const {
  std::string text =
      fmt::format("{:>7}  {:<12} {:>7}  {:>9}  {:>10}  {:>7}  {}\n", "context", "policy", "budget",
                  "documents", "perplexity", "/ full", "95 % interval");
  for (const Json& row : summary) {
    text += fmt::format("{:>7}  {:<12} {:>7}  {:>9}  {:>10.4f}  {:>7.4f}  {}\n",
                        row["context"].get<int64_t>(), row["policy"].get<std::string>(),
                        budget_text(row), row["documents"].get<int64_t>(),
                        row["perplexity"].get<double>(), row["ratio"].get<double>(),
                        interval_text(row["ratio_interval"], 4));
  }
  return text;
}

}  // namespace coppice
