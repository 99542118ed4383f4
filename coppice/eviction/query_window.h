// What scorers that look at attention share: the last queries of each layer, and probabilities out
// of queries and stored keys.
//
// Probabilities are reduced over the query heads of a group by their mean, before any pooling.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/eviction/scorers.h"

namespace coppice {

// Heads that share a row: q [T, Hq, D] -> [T, G, D], those of KV head `head`.
at::Tensor group_queries(const at::Tensor& q, int64_t head, int64_t kv_heads);

// Scores before the softmax, minus infinity where a key is newer than its query. q [T, G, D] at
// positions first .. first + T - 1, keys [L, D] at `positions`, rising. -> [T, G, L] float32
at::Tensor masked_logits(const at::Tensor& q, int64_t first, const at::Tensor& keys,
                         std::span<const int32_t> positions);

// Softmax over the last dimension; 0 where everything is masked.
at::Tensor probabilities(const at::Tensor& logits);

// A sliding window of `kernel` (odd) over scores [L]: `max` ignores what lies outside, else the
// mean with zeros outside. -> [L]
at::Tensor pool_scores(const at::Tensor& scores, int64_t kernel, bool max);

// How many of the positions, rising, come before the window that starts at `first`.
int64_t keys_before(std::span<const int32_t> positions, int64_t first);

// pool_scores over the first `before` of the scores [L]; the window's own take no part.
at::Tensor pool_before(const at::Tensor& scores, int64_t before, int64_t kernel, bool max);

// Keeps the newest `window` queries of every layer in the sequence's notes:
// notes[layer] [<= window, Hq, D] float32, of the tokens just before tokens_seen.
class QueryWindowScorer : public Scorer {
 public:
  explicit QueryWindowScorer(int64_t window) : window_(window) {}

  ScorerNeeds needs() const override { return {.queries = true, .rescored = true}; }
  ScoreForm form() const override { return {.aux_weight = 1.0f}; }
  void observe(const SequenceView& view, const PassQueries& pass) const override;
  void note(const SequenceView& view) const override;
  // Row by row; nothing where no queries were seen.
  void judge(const SequenceView& view, int64_t sinks) const override;

 protected:
  // -> scores [L] of one row. q [T, G, D], the newest queries there are, the first at `first`.
  virtual at::Tensor score_row(const at::Tensor& q, int64_t first, const at::Tensor& keys,
                               std::span<const int32_t> positions) const = 0;
  int64_t window() const { return window_; }

 private:
  int64_t window_;
};

}  // namespace coppice
