// One sequence of the cache as a scorer sees it: rows in order of position, numbers in float32.
//
// Rows of the cache are not in order of position once something was evicted; what looks at
// neighbours (pooling, the newest duplicate) must not see that.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/cache/kv_cache.h"

namespace coppice {

class SequenceView final {
 public:
  // Both must outlive the view. The pass in progress is part of the rows.
  SequenceView(KvCache& cache, SequenceId sequence) : cache_(cache), sequence_(sequence) {}

  int64_t layers() const { return cache_.config().num_layers; }
  int64_t kv_heads() const { return cache_.config().num_kv_heads; }
  int64_t tokens_seen() const { return cache_.tokens_seen(sequence_); }
  int64_t tokens_in_pass() const { return cache_.tokens_in_pass(sequence_); }
  int64_t next_rotary() const { return cache_.next_rotary(sequence_); }
  int64_t rotary_after_pass() const { return cache_.rotary_after_pass(sequence_); }
  int64_t length(int64_t layer, int64_t head) const {
    return cache_.row(sequence_, layer, head).length;
  }
  // KvCache::notes: what the scorer keeps of the whole sequence.
  std::vector<at::Tensor>& notes() const { return cache_.notes(sequence_); }
  std::vector<at::Tensor>& pass_notes() const { return cache_.pass_notes(sequence_); }

  struct Row {
    int64_t layer = 0, head = 0;
    std::vector<int64_t> places;     // [L], in the cache's row, by rising position
    std::vector<int32_t> positions;  // [L], rising
  };
  Row row(int64_t layer, int64_t head) const;
  at::Tensor keys(const Row& row) const;               // [L, D] float32, a copy
  at::Tensor values(const Row& row) const;             // [L, D] float32, a copy
  std::vector<float> log_betas(const Row& row) const;  // [L]
  // Scores are the cache's aux.
  std::vector<float> scores(const Row& row) const;                       // [L]
  void set_scores(const Row& row, std::span<const float> scores) const;  // [L]
  void set_scores(const Row& row, const at::Tensor& scores) const;       // [L]

 private:
  KvCache& cache_;
  SequenceId sequence_;
};

// positions as a tensor. -> [L] int64
at::Tensor position_tensor(const SequenceView::Row& row);

}  // namespace coppice
