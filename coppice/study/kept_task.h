// What is kept: how many entries each layer and head holds at the end of a text, and of which kinds
// of token.
//
// A document is read through the cache as serving reads a prompt, evicted after every chunk; then
// the rows are looked at. Kinds are those of token_kinds.h. Per row and kind the study compares the
// share among what is kept with the share among what was seen, in the manner of Figure 6 of
// arXiv:2605.09649. The newest chunk counts like the rest.
#pragma once

#include <vector>

#include "coppice/eval/eval_documents.h"
#include "coppice/eval/eval_task.h"

namespace coppice {

class Tokenizer;

struct KeptOptions {
  int64_t context = 2048;  // tokens of each document
};

class KeptTask final : public EvalTask {
 public:
  // Each document has at least `context` tokens. The tokenizer must outlive the task. Throws
  // kInvalidArgument for no document, or a context out of range.
  KeptTask(const EvalModel& model, const Tokenizer& tokenizer, std::vector<EvalDocument> documents,
           const KeptOptions& options);

  std::string_view name() const override { return "kept"; }
  Json config() const override { return {{"context", options_.context}}; }
  int64_t items() const override { return static_cast<int64_t>(documents_.size()); }
  std::vector<Json> keys(int64_t item) const override;
  int64_t tokens(int64_t) const override { return options_.context; }
  // One row: "layers", "kv_heads"; "kept" [L x Hkv] entries by row; "seen_kinds" [kinds] tokens;
  // "kept_kinds" [L x Hkv][kinds] entries.
  std::vector<Json> run(int64_t item, const EvictionConfig& eviction) override;
  std::vector<std::string> outcome() const override { return {"kept", "kept_kinds"}; }
  // One object a setting, sums over documents: the fields of a row, and "documents".
  Json summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const override;
  std::string table(const Json& summary) const override;

 private:
  EvalModel model_;
  const Tokenizer& tokenizer_;
  std::vector<EvalDocument> documents_;
  KeptOptions options_;
};

}  // namespace coppice
