// Arguments that the operations of training have in common, checked.
#pragma once

#include <cstdint>
#include <span>

#include "coppice/core/error.h"

namespace coppice::ops {

// Document b holds tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1. Throws kInvalidArgument unless
// offsets run from 0 to `tokens` and never fall.
inline void check_documents(std::span<const int64_t> cu_seqlens, int64_t tokens,
                            std::string_view what) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0 || cu_seqlens.back() != tokens)
    fail_argument("{}: expected document offsets from 0 to {}, got {} from {} to {}", what, tokens,
                  cu_seqlens.size(), cu_seqlens.empty() ? 0 : cu_seqlens.front(),
                  cu_seqlens.empty() ? 0 : cu_seqlens.back());
  for (std::size_t b = 0; b + 1 < cu_seqlens.size(); ++b)
    if (cu_seqlens[b] > cu_seqlens[b + 1])
      fail_argument("{}: document offsets fall from {} to {}", what, cu_seqlens[b],
                    cu_seqlens[b + 1]);
}

// How sharply a cut ends a key's life: a power of two, so that it takes products alone.
inline void check_sharpness(int64_t sharpness, std::string_view what) {
  if (sharpness < 2 || sharpness > 32 || (sharpness & (sharpness - 1)) != 0)
    fail_argument("{}: expected a sharpness of 2, 4, 8, 16 or 32, got {}", what, sharpness);
}

inline int64_t squarings_of(int64_t sharpness) {
  int64_t n = 0;
  while (int64_t{1} << n < sharpness) ++n;
  return n;
}

}  // namespace coppice::ops
