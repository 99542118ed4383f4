// Held-out text: how much worse than with the full cache the documents of a file are predicted.
//
// Of each document that is long enough for a context of n tokens the first n are read through the
// cache as serving reads a prompt (perplexity.h), and the predictions of the last half are scored.
// Summed up as
//
//   ratio = exp(sum over documents of (NLL - NLL of the full cache) / sum of scored tokens),
//
// the perplexity over the full cache's on the same documents, with a 95 % interval from a paired
// bootstrap over documents.
#pragma once

#include "coppice/eval/eval_documents.h"
#include "coppice/eval/eval_task.h"

namespace coppice {

struct HeldOutOptions {
  std::vector<int64_t> contexts = {2048};
  int64_t documents = 0;  // of each context, spread evenly over those long enough; 0: all of them
  uint64_t seed = 0;      // of the bootstrap
};

class HeldOutTask final : public EvalTask {
 public:
  // Throws kInvalidArgument for a context that no document is long enough for, or options out of
  // range; kCapacity for a context beyond the model's positions. A context with fewer documents
  // than asked for is said on stderr.
  HeldOutTask(const EvalModel& model, std::vector<EvalDocument> documents,
              const HeldOutOptions& options);

  std::string_view name() const override { return "held-out"; }
  Json config() const override { return Json::object(); }
  int64_t items() const override { return static_cast<int64_t>(items_.size()); }
  std::vector<Json> keys(int64_t item) const override;
  int64_t tokens(int64_t item) const override;
  std::vector<Json> run(int64_t item, const EvictionConfig& eviction) override;
  std::vector<std::string> outcome() const override { return {"nll", "scored_tokens"}; }
  Json summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const override;
  std::string table(const Json& summary) const override;

 private:
  const DocumentPart& at(int64_t item) const { return items_.at(static_cast<std::size_t>(item)); }
  Json summary_of(const RowTable& rows, int64_t context, const EvictionConfig& eviction) const;

  EvalModel model_;
  std::vector<EvalDocument> documents_;
  HeldOutOptions options_;
  std::vector<DocumentPart> items_;
};

}  // namespace coppice
