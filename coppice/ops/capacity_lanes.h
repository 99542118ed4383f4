// Loops of the capacity term over a block of rows, one row a lane. Internal to capacity*.cpp.
//
// Documents are cut into blocks of 64 positions. Powers of beta start from exp at a block's border
// and go on by products inside it, so that rounding does not build up with age.
#pragma once

#include <cstdint>

namespace coppice::ops {

inline constexpr int64_t kCapacityBlock = 64;  // positions
template <typename T>
inline constexpr int64_t kCapacityLanes = 64 / static_cast<int64_t>(sizeof(T));

// One document and kCapacityLanes rows; pointers begin at the document's first token.
template <typename T>
struct CapacityRows {
  int64_t tokens;
  const T* log_beta;  // [tokens, lanes]
  const T* decay;     // [tokens, lanes]: beta - 1
};

template <typename T>
struct CapacityKernels {
  // held[t - begin][lane] += occupancy at positions begin .. begin + 63 (or the last token).
  // REQUIRES: begin is a multiple of 64.
  void (*occupancy)(const CapacityRows<T>& rows, int64_t begin, T* held);
  // slope[i - begin][lane] = sum over t of weight[t] (t - i) beta_i^(t - i), for keys begin ..
  // begin + 63. weight [tokens] with stride 1, or [tokens, lanes] with stride `lanes`.
  void (*slope)(const CapacityRows<T>& rows, int64_t begin, const T* weight, int64_t stride,
                T* slope);
};

template <typename T>
const CapacityKernels<T>& capacity_kernels();

}  // namespace coppice::ops
