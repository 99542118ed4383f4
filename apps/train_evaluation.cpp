#include "apps/train_evaluation.h"

#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/eval/perplexity.h"
#include "coppice/models/load.h"
#include "coppice/train/document_file.h"

namespace coppice {

TrainEvaluation::TrainEvaluation(const TrainOptions& options, const Checkpoint& checkpoint,
                                 const DocumentEncoder& encoder)
    : checkpoint_(checkpoint), budgets_(options.eval_budgets), context_(options.eval_context) {
  const DocumentFile file = DocumentFile::open(options.eval_data);
  int64_t found = 0;
  for (int64_t i = 0; i < file.size() && found < options.eval_documents; ++i) {
    const EncodedDocument document = encoder.encode(file.read(i), file.where(i));
    if (static_cast<int64_t>(document.tokens.size()) < context_) continue;
    ids_.insert(ids_.end(), document.tokens.begin(), document.tokens.begin() + context_);
    ++found;
  }
  if (found == 0)
    fail_argument("{}: no document has --eval-context {} tokens", options.eval_data, context_);
  if (found < options.eval_documents)
    log_warning("{}: {} documents have {} tokens, {} were asked for", options.eval_data, found,
                context_, options.eval_documents);
}

double TrainEvaluation::perplexity(const GateWeights& gate, const std::string& policy,
                                   int64_t budget) const {
  // Loaded anew each time: it takes less than a second, and nothing of it stays beside training.
  const std::shared_ptr<Model> model = load_model(checkpoint_, WeightMode::kPacked, &gate);
  PerplexityOptions options;
  options.context_tokens = context_;
  options.contexts = static_cast<int64_t>(ids_.size()) / context_;
  options.eviction.policy = policy;
  options.eviction.budget_entries = budget;
  options.kv_dtype = at::kHalf;
  return evaluate_perplexity(*model, ids_, options).perplexity;
}

Json TrainEvaluation::run(const GateWeights& gate) {
  if (full_ == 0.0) full_ = perplexity(gate, "full", EvictionConfig::kUnbounded);
  const bool own_budgets = gate.spec.kind == "retention" && gate.spec.variant == "local";
  const std::string policy = own_budgets ? "trimkv" : default_policy(gate.spec.kind);
  Json rows = Json::array();
  for (const int64_t budget : budgets_) {
    const double found = perplexity(gate, policy, budget);
    rows.push_back({{"budget", budget}, {"perplexity", found}, {"ratio", found / full_}});
  }
  return {{"documents", static_cast<int64_t>(ids_.size()) / context_},
          {"context", context_},
          {"policy", policy},
          {"full", full_},
          {"budgets", rows}};
}

}  // namespace coppice
