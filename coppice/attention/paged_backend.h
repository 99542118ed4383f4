// Attention over a KvCache: writes the pass's keys and values to the cache, then lets every new
// token attend over what its row still holds, itself included. Plain softmax, whatever log_beta is.
//
// The caller reserves before the pass and commits, rolls back or evicts after it
// (cache/kv_cache.h). Results are the same bit for bit whether a sequence runs alone or in a batch.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "coppice/cache/kv_cache.h"
#include "coppice/nn/attention_backend.h"
#include "coppice/ops/paged_attention.h"

namespace coppice {

class PagedBackend final : public AttentionBackend {
 public:
  enum class Path {
    kFastest,    // ops::paged_attention for CPU tensors of up to 32 bits, else kReference
    kReference,  // ops::paged_attention_reference always
  };

  // `cache` must outlive the backend.
  explicit PagedBackend(KvCache& cache, Path path = Path::kFastest);

  // Batch::sequence_ids are SequenceIds of the cache. A sequence's tokens in the batch are what was
  // reserved for it. Throws kInvalidArgument when shapes do not fit the cache.
  at::Tensor forward(const AttentionInput& input, const Batch& batch) override;

  // Is shown the queries of each sequence and layer once its entries are appended and attended to:
  // `index` counts the batch's sequences, q [T, Hq, D] is rotated and not yet scaled. Empty: nobody
  // looks. It must keep copies, not views.
  struct Seen {
    int64_t layer;
    std::size_t index;
    at::Tensor q;
    double scale;
  };
  using Observer = std::function<void(const Seen& seen)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

 private:
  void append(const AttentionInput& input, const Batch& batch);
  void plan_rows(int64_t layer, const Batch& batch);
  void show(const AttentionInput& input, const Batch& batch) const;
  at::Tensor attend_fast(const AttentionInput& input);
  at::Tensor attend_reference(const AttentionInput& input);

  KvCache& cache_;
  Path path_;
  Observer observer_;
  std::vector<ops::PagedRow> rows_;  // of the layer in hand
  ops::PagedWorkspace workspace_;
};

}  // namespace coppice
