// Need labels from bfloat16 for AVX-512 with its bfloat16 products.
#include "coppice/ops/cpu_features.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "coppice/ops/need_labels_kernels.h"

// After the includes, so that no inline function of theirs is compiled for this level.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16,fma,avx2")
// GCC 12 warns of its own header's deliberately undefined registers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include "coppice/ops/tile_bf16_inl.h"
// In this order: the kernels use the element.
#include "coppice/ops/need_labels_inl.h"

namespace coppice::ops {
namespace {
constexpr NeedKernels kKernels = Need<BrainElement>::kAll;
}
}  // namespace coppice::ops

#pragma GCC pop_options

namespace coppice::ops {

const NeedKernels* bfloat16_need_kernels() {
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return cpu_level() >= CpuLevel::kAvx512 && has ? &kKernels : nullptr;
}

}  // namespace coppice::ops

#else

#include "coppice/ops/need_labels_kernels.h"

namespace coppice::ops {
const NeedKernels* bfloat16_need_kernels() { return nullptr; }
}  // namespace coppice::ops

#endif
