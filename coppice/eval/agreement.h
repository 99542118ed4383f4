// Agreement with the full cache: how far what a model predicts moves when entries are evicted.
//
// Of each document that is long enough for a context of n tokens the first n are read through the
// cache as serving reads a prompt, chunk by chunk with eviction after each. Then the full cache's
// greedy continuation is read token by token, as serving decodes, whatever the bounded cache would
// have written itself. Two measures, both against the full cache on the same tokens:
//
//   kl         mean of KL(full || bounded) in nats, over the predictions made at the positions
//              n/2 .. n - 2 of the document; log-softmax over the whole vocabulary in float32,
//              summed in float64, so that equal predictions give 0 exactly and rounding may give
//              a little less than 0
//   agreement  share of the continuation's tokens that the bounded cache too finds likeliest;
//   prefix     as many tokens in front agree without a gap: up to there the bounded cache's own
//              greedy continuation is the same text
//
// The full cache's continuation does not end at an end token. What it said is kept while an item is
// run under all settings: hidden states [n/2, C] and the continuation.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "coppice/eval/eval_documents.h"
#include "coppice/eval/eval_task.h"

namespace coppice {

struct AgreementOptions {
  std::vector<int64_t> contexts = {2048};
  int64_t new_tokens = 512;  // of the continuation
  int64_t documents = 0;  // of each context, spread evenly over those long enough; 0: all of them
  uint64_t seed = 0;      // of the bootstrap
};

class AgreementTask final : public EvalTask {
 public:
  // Throws as HeldOutTask; kCapacity where context and continuation pass the model's positions.
  AgreementTask(const EvalModel& model, std::vector<EvalDocument> documents,
                const AgreementOptions& options);

  std::string_view name() const override { return "agreement"; }
  Json config() const override { return {{"new_tokens", options_.new_tokens}}; }
  int64_t items() const override { return static_cast<int64_t>(items_.size()); }
  std::vector<Json> keys(int64_t item) const override;
  int64_t tokens(int64_t item) const override;
  // "kl_sum" of "scored_tokens"; "agreed" of "new_tokens", "prefix"; and of the cache.
  std::vector<Json> run(int64_t item, const EvictionConfig& eviction) override;
  std::vector<std::string> outcome() const override { return {"kl_sum", "agreed", "prefix"}; }
  // Per context and setting: "kl", "agreement" and "prefix" (means over documents), each with its
  // interval from a bootstrap over documents.
  Json summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const override;
  std::string table(const Json& summary) const override;

 private:
  // What the full cache says of an item.
  struct Reference {
    int64_t item = -1;
    at::Tensor hidden;             // [scored, C]
    std::vector<int32_t> written;  // [new_tokens]
  };
  std::span<const int32_t> document(int64_t item) const;
  const Reference& reference(int64_t item);
  Json summary_of(const RowTable& rows, int64_t context, const EvictionConfig& eviction) const;

  EvalModel model_;
  std::vector<EvalDocument> documents_;
  AgreementOptions options_;
  std::vector<DocumentPart> items_;
  Reference reference_;
};

}  // namespace coppice
