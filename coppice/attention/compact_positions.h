// Rotary positions for streams longer than the model's trained range (--positions compact).
//
// Positions stay original everywhere but in the keys' rotation. Keys keep their true distances
// until the next rotary position would pass the trained range P_max. Then every row is renumbered
// (docs/maths.md, equation 8): with P = min(longest row, P_max / 2), the entry with r newer entries
// in its row gets
//
//     p' = max(0, P - 1 - r)
//
// its key is turned in place by p' - p, and the sequence goes on at P. So gaps that eviction has
// left close at each renumbering and true distances hold in between. Of the two readings of the
// attention-sink paper (arXiv:2309.17453, section 3.2: positions within the cache) this one
// renumbers, but not at every step: a step costs nothing, a renumbering comes at most once in
// P_max / 2 tokens. Differs from the paper in that.
//
// REQUIRES: CacheConfig::rotary_positions, and one-part rotary positions over the whole head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "coppice/cache/kv_cache.h"

namespace coppice {

// A pass of `new_tokens` would reach past the trained positions 0 .. trained_positions - 1.
bool compaction_due(const KvCache& cache, SequenceId sequence, int64_t new_tokens,
                    int64_t trained_positions);

// Renumbers the sequence's rows. Afterwards cache.next_rotary(sequence) is P. inv_freq [D/2], the
// model's frequencies, scaling included. Throws kInvalidArgument unless trained_positions >= 2,
// the sizes fit and the cache is on the CPU. REQUIRES: no pass in progress.
void compact_positions(KvCache& cache, SequenceId sequence, const at::Tensor& inv_freq,
                       int64_t trained_positions);

}  // namespace coppice
