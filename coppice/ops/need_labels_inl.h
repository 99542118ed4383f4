// The kernels of need_labels_kernels.h, for an Element of tile_products_inl.h.
#pragma once

#include "coppice/ops/tile_products_inl.h"

namespace coppice::ops {
namespace {

template <typename Element>
struct Need {
  using Stored = typename Element::Stored;
  using Unit = typename Element::Unit;
  static constexpr int64_t kPer = Element::kPer;

  static void pack(const void* x, int64_t stride, int64_t tokens, int64_t width, void* lanes) {
    const int64_t padded = (width + 15) / 16 * 16;
    const auto* from = static_cast<const Stored*>(x);
    auto* to = static_cast<Unit*>(lanes);
    for (int64_t t = 0; t < tokens; t += kTile, to += padded / kPer * kTile)
      pack_lanes<Element>(from + t * stride, stride, std::min(kTile, tokens - t), width, padded,
                          to);
  }

  static int64_t bin_of(int64_t age) {
    const int64_t log2 = 63 - __builtin_clzll(static_cast<unsigned long long>(age));
    return std::clamp<int64_t>(log2 - 2, 0, kNeedAges - 1);
  }

  // Lanes hold the numbers first .. first + 15: those within [from, until).
  static __mmask16 within(int64_t first, int64_t from, int64_t until) {
    const int64_t low = std::clamp<int64_t>(from - first, 0, 16);
    const int64_t high = std::clamp<int64_t>(until - first, low, 16);
    return static_cast<__mmask16>((1U << high) - (1U << low));
  }

  static void raise(float* at, __mmask16 which, Vec x) {
    const Vec before = _mm512_load_ps(at);
    _mm512_store_ps(at, _mm512_mask_max_ps(before, which, before, x));
  }

  // Utilities of one key, at place `key`, for the queries at places t .. t + 15. cuts [5]: 0, the
  // cuts, the end.
  static void record(Vec x, int64_t key, int64_t t, const int64_t* cuts, float* slots) {
    const int64_t oldest = t + 15 - key;
    if (oldest >= 4)
      for (int64_t b = bin_of(std::max<int64_t>(t - key, 4)); b <= bin_of(oldest); ++b) {
        const int64_t until = b + 1 < kNeedAges ? int64_t{8} << b : INT64_MAX / 2;
        raise(slots + b * 16, within(t - key, int64_t{4} << b, until), x);
      }
    for (int64_t c = 1; c <= kNeedCuts; ++c)
      if (key < cuts[c] && t + 15 >= cuts[c] && t < cuts[c + 1])
        raise(slots + (kNeedAges + c - 1) * 16, within(t, cuts[c], cuts[c + 1]), x);
  }

  static void sweep(const NeedTask& task, float* most) {
    const int64_t padded = (task.width + 15) / 16 * 16, steps = padded / kPer;
    const int64_t first = task.tile * kTile, count = std::min(kTile, task.tokens - first);
    const Buffer<Unit> keys = make_buffer<Unit>(kTile * steps);
    auto* rows = reinterpret_cast<Stored*>(keys.get());
    std::fill_n(rows, kTile * padded, Stored{});
    for (int64_t i = 0; i < count; ++i)
      std::copy_n(static_cast<const Stored*>(task.k) + (first + i) * task.k_stride, task.width,
                  rows + i * padded);
    const Buffer<float> slots = make_buffer<float>(kTile * kNeedSlots * 16);
    std::fill_n(slots.get(), kTile * kNeedSlots * 16, 0.0F);
    alignas(64) float logits[kTile * kTile];
    for (int64_t from = first; from < task.tokens; from += kTile)
      for (int64_t g = 0; g < task.group; ++g) {
        multiply<Element>(kTile, kTile, steps, {keys.get(), steps, 1},
                          {static_cast<const Unit*>(task.heads[g].lanes) + from * steps, kTile},
                          {logits, kTile, false});
        for (int64_t i = 0; i < count; ++i)
          for (int v = 0; v < kVecs; ++v) {
            const int64_t t = from + 16 * v;
            if (t + 15 < first + i) continue;  // all of them before the key
            const Vec x = utility(task, task.heads[g], first + i, t,
                                  _mm512_load_ps(logits + i * kTile + 16 * v));
            record(x, first + i, t, task.cuts, slots.get() + i * kNeedSlots * 16);
          }
      }
    for (int64_t i = 0; i < count * kNeedSlots; ++i)
      most[i] = _mm512_reduce_max_ps(_mm512_load_ps(slots.get() + i * 16));
  }

  // utility^2 of a key for the queries t .. t + 15; garbage for those before the key.
  static Vec utility(const NeedTask& task, const NeedHead& head, int64_t key, int64_t t,
                     Vec product) {
    const Vec p = exp2(_mm512_fmsub_ps(product, _mm512_set1_ps(task.scale * kLog2E),
                                       _mm512_loadu_ps(head.lse + t)));
    const Vec size =
        _mm512_fmadd_ps(_mm512_set1_ps(head.of_entry[key]), _mm512_loadu_ps(head.weight + t),
                        _mm512_loadu_ps(head.of_query + t));
    const Vec f = task.odds ? _mm512_div_ps(p, _mm512_sub_ps(_mm512_set1_ps(1.001F), p)) : p;
    return _mm512_mul_ps(_mm512_mul_ps(f, f), size);
  }

  static constexpr NeedKernels kAll = {sizeof(Stored), pack, sweep};
};

}  // namespace
}  // namespace coppice::ops
