// The training kernels on bfloat16 for AVX-512 with its bfloat16 products.
#include "coppice/ops/distillation_kernels.h"
#include "coppice/ops/need_labels_kernels.h"
#include "coppice/ops/retention_attention_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "coppice/ops/cpu_features.h"

// After the includes, so that no inline function of theirs is compiled for this level.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16,fma,avx2")
// GCC 12 warns of its own header's deliberately undefined registers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include "coppice/ops/tile_bf16_inl.h"
// In this order: the kernels use the element.
#include "coppice/ops/distillation_inl.h"
#include "coppice/ops/need_labels_inl.h"
#include "coppice/ops/retention_attention_inl.h"

namespace coppice::ops {
namespace {
constexpr DistillKernels kDistill = Distill<BrainElement>::kAll;
constexpr NeedKernels kNeed = Need<BrainElement>::kAll;
constexpr RetentionKernels kRetention = Kernels<BrainElement, ByPower>::kAll;
constexpr RetentionKernels kCut = Kernels<BrainElement, ByCut>::kAll;
}  // namespace
}  // namespace coppice::ops

#pragma GCC pop_options

namespace coppice::ops {
namespace {
bool can_run() {
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return cpu_level() >= CpuLevel::kAvx512 && has;
}
}  // namespace

const DistillKernels* bfloat16_distill_kernels() { return can_run() ? &kDistill : nullptr; }
const NeedKernels* bfloat16_need_kernels() { return can_run() ? &kNeed : nullptr; }
const RetentionKernels* bfloat16_retention_kernels(bool cut) {
  return can_run() ? cut ? &kCut : &kRetention : nullptr;
}

}  // namespace coppice::ops

#else

namespace coppice::ops {
const DistillKernels* bfloat16_distill_kernels() { return nullptr; }
const NeedKernels* bfloat16_need_kernels() { return nullptr; }
const RetentionKernels* bfloat16_retention_kernels(bool) { return nullptr; }
}  // namespace coppice::ops

#endif
