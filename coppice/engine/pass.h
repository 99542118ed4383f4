// One forward pass of a model over the KV cache, all or nothing: what serving and evaluation share.
//
//   hidden = forward_pass(model, backend, cache, parts);   // reserve, run; rolled back when it
//   throws dropped = commit_pass(cache, part);                    // for each part: commit, evict
//
// Policies that ask for it are shown the queries of their part.
//
// A long part need not hold up the others: Pass runs some layers at a time, and other passes, of
// other sequences, may run in between.
//
// A part whose outcome is not wanted after forward_pass is undone with KvCache::rollback instead.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/attention/paged_backend.h"
#include "coppice/cache/kv_cache.h"
#include "coppice/engine/image_span.h"
#include "coppice/eviction/policy.h"
#include "coppice/models/model.h"

namespace coppice {

// The next tokens of one sequence.
struct PassPart {
  SequenceId sequence = 0;
  std::span<const int32_t> tokens;         // [T], T >= 1; ids of the vocabulary
  EvictionPolicy* policy = nullptr;        // never null
  std::span<const ImageSpan> images = {};  // of the sequence
};

// A forward pass that can be left and taken up again. Tokens, policies and pictures of its parts
// must stay where they are. What finish() has not been asked for is rolled back at the end.
class Pass final {
 public:
  // Reserves and embeds. No two parts may be of one sequence. When it throws, the cache is as
  // before. kCapacity: blocks are lacking. REQUIRES: no other pass over one of the sequences.
  Pass(Model& model, PagedBackend& backend, KvCache& cache, std::vector<PassPart> parts);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // At most `layers` more layers. True: that was the last one.
  bool advance(int64_t layers);
  // -> hidden states [N, C] of all parts, packed in order. REQUIRES: the last layer has run.
  at::Tensor finish();

 private:
  void reserve();
  void roll_back();

  Model& model_;
  PagedBackend& backend_;
  KvCache& cache_;
  std::vector<PassPart> parts_;
  std::size_t reserved_ = 0;  // of parts_, the first ones
  ForwardState state_;
};

// -> hidden states [N, C] of all parts, packed in order. No two parts may be of one sequence. When
// it throws, the cache is as before. kCapacity: blocks are lacking.
at::Tensor forward_pass(Model& model, PagedBackend& backend, KvCache& cache,
                        std::span<const PassPart> parts);

// Makes the part's entries the sequence's own and brings it down to its budget. -> entries dropped.
int64_t commit_pass(KvCache& cache, const PassPart& part);

}  // namespace coppice
