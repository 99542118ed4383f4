// Rotary positions for streams longer than the model's trained range (--positions compact).
//
// Positions stay original everywhere but in the keys' rotation. Keys keep their true distances
// until the next rotary position would pass the trained range P_max. Then every row is renumbered
// (docs/maths.md, equation 8): with P = min(longest row, P_max / 2), the entry with r newer entries
// in its row gets
//
//     p' = max(0, P - 1 - r)
//
// its key is turned in place by p' - p, and the sequence goes on at P. A picture whose tokens stand
// in a grid is one thing: all that is left of it moves by the same distance, and takes up its
// extent where another entry takes up 1; while it is being read, it begins at P. So gaps that
// eviction has left close at each renumbering and true distances hold in between. Of the two
// readings of the attention-sink paper (arXiv:2309.17453, section 3.2: positions within the cache)
// this one renumbers, but not at every step: a step costs nothing, a renumbering comes at most once
// in P_max / 2 tokens. Differs from the paper in that.
//
// REQUIRES: CacheConfig::rotary_positions, and rotary positions over the whole head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "coppice/cache/kv_cache.h"

namespace coppice {

// Tokens begin .. end - 1 share one rotary position and move together. What follows goes on
// `extent` behind it.
struct RotaryGroup {
  int64_t begin = 0, end = 0, extent = 1;
};

// Renumbers the sequence's rows. Afterwards cache.next_rotary(sequence) is P. inv_freq [D/2], the
// model's frequencies, scaling included. Throws kInvalidArgument unless trained_positions >= 2,
// the sizes fit and the cache is on the CPU. REQUIRES: no pass in progress; groups are in order.
void compact_positions(KvCache& cache, SequenceId sequence, const at::Tensor& inv_freq,
                       int64_t trained_positions, std::span<const RotaryGroup> groups = {});

}  // namespace coppice
