#include "coppice/study/kept_task.h"

#include <algorithm>
#include <span>

#include "coppice/core/error.h"
#include "coppice/engine/engine.h"
#include "coppice/eval/eval_engine.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/figures.h"
#include "coppice/models/model.h"
#include "coppice/study/token_kinds.h"

namespace coppice {
namespace {

void add_to(Json& sum, const Json& more) {
  if (sum.is_number()) {
    sum = sum.get<int64_t>() + more.get<int64_t>();
    return;
  }
  for (std::size_t i = 0; i < sum.size(); ++i) add_to(sum[i], more.at(i));
}

}  // namespace

KeptTask::KeptTask(const EvalModel& model, const Tokenizer& tokenizer,
                   std::vector<EvalDocument> documents, const KeptOptions& options)
    : model_(model), tokenizer_(tokenizer), documents_(std::move(documents)), options_(options) {
  if (documents_.empty())
    fail_argument("kept: no document has the {} tokens asked for", options.context);
  if (options.context < 1) fail_argument("kept: a context of {} tokens", options.context);
  for (const EvalDocument& document : documents_)
    if (static_cast<int64_t>(document.tokens.size()) < options.context)
      fail_argument("kept: document {} has {} tokens, expected {}", document.id,
                    document.tokens.size(), options.context);
}

std::vector<Json> KeptTask::keys(int64_t item) const {
  return {Json{{"document", documents_[static_cast<std::size_t>(item)].number}}};
}

std::vector<Json> KeptTask::run(int64_t item, const EvictionConfig& eviction) {
  const EvalDocument& document = documents_[static_cast<std::size_t>(item)];
  Engine engine(model_.model, eval_engine(model_, eviction, options_.context));
  const CacheConfig& sizes = engine.cache().config();

  Request read;
  read.prompt.assign(document.tokens.begin(), document.tokens.begin() + options_.context);
  read.sampling.max_tokens = 0;
  read.keep_session = true;
  const SequenceId sequence = *engine.sequence_of_session(*engine.run(read).session);

  const std::vector<TokenKind> kinds = token_kinds(tokenizer_, read.prompt);
  std::vector<int64_t> seen(kTokenKinds, 0);
  for (const TokenKind kind : kinds) ++seen[static_cast<std::size_t>(kind)];
  std::vector<int64_t> kept;
  std::vector<std::vector<int64_t>> kept_kinds;
  for (int64_t layer = 0; layer < sizes.num_layers; ++layer) {
    for (int64_t head = 0; head < sizes.num_kv_heads; ++head) {
      const KvCache::RowContent row = engine.cache().read_row(sequence, layer, head);
      kept.push_back(static_cast<int64_t>(row.positions.size()));
      std::vector<int64_t>& counts = kept_kinds.emplace_back(kTokenKinds, 0);
      for (const int32_t position : row.positions)
        ++counts[static_cast<std::size_t>(kinds[static_cast<std::size_t>(position)])];
    }
  }
  return {Json{{"id", document.id},
               {"layers", sizes.num_layers},
               {"kv_heads", sizes.num_kv_heads},
               {"kept", kept},
               {"seen_kinds", seen},
               {"kept_kinds", kept_kinds}}};
}

Json KeptTask::summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const {
  Json all = Json::array();
  for (const EvictionConfig& eviction : settings) {
    Json sum;
    for (int64_t item = 0; item < items(); ++item) {
      const Json* row = rows.find(keys(item).front(), eviction);
      if (row == nullptr) continue;
      if (sum.is_null()) {
        sum = setting_key(eviction);
        for (const char* name : {"layers", "kv_heads", "kept", "seen_kinds", "kept_kinds"})
          sum[name] = row->at(name);
        sum["documents"] = 1;
      } else {
        for (const char* name : {"kept", "seen_kinds", "kept_kinds"})
          add_to(sum[name], row->at(name));
        sum["documents"] = sum["documents"].get<int64_t>() + 1;
      }
    }
    if (!sum.is_null()) all.push_back(std::move(sum));
  }
  return all;
}

std::string KeptTask::table(const Json& summary) const {
  std::string text = fmt::format("{:<20} {:>7}  {:>9}  {:>13}\n", "policy", "budget", "documents",
                                 "rows from..to");
  for (const Json& row : summary) {
    const auto kept = row["kept"].get<std::vector<int64_t>>();
    const auto [least, most] = std::ranges::minmax(kept);
    const auto documents = row["documents"].get<int64_t>();
    text += fmt::format("{:<20} {:>7}  {:>9}  {:>6}..{:<6}\n", row["policy"].get<std::string>(),
                        budget_text(row), documents, least / documents, most / documents);
  }
  return text;
}

}  // namespace coppice
