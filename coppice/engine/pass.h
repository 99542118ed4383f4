// One forward pass of a model over the KV cache, all or nothing: what serving and evaluation share.
//
//   hidden = forward_pass(model, backend, cache, parts);   // reserve, run; rolled back when it
//   throws dropped = commit_pass(cache, part);                    // for each part: commit, evict
//
// Policies that ask for it are shown the queries of their part.
//
// A part whose outcome is not wanted after forward_pass is undone with KvCache::rollback instead.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "coppice/attention/paged_backend.h"
#include "coppice/cache/kv_cache.h"
#include "coppice/engine/image_span.h"
#include "coppice/eviction/policy.h"

namespace coppice {

struct Model;

// The next tokens of one sequence.
struct PassPart {
  SequenceId sequence = 0;
  std::span<const int32_t> tokens;         // [T], T >= 1; ids of the vocabulary
  EvictionPolicy* policy = nullptr;        // never null
  std::span<const ImageSpan> images = {};  // of the sequence
};

// -> hidden states [N, C] of all parts, packed in order. No two parts may be of one sequence. When
// it throws, the cache is as before. kCapacity: blocks are lacking.
at::Tensor forward_pass(Model& model, PagedBackend& backend, KvCache& cache,
                        std::span<const PassPart> parts);

// Makes the part's entries the sequence's own and brings it down to its budget. -> entries dropped.
int64_t commit_pass(KvCache& cache, const PassPart& part);

}  // namespace coppice
