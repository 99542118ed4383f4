// The kernels of distillation_kernels.h, for an Element of tile_products_inl.h.
#pragma once

#include "coppice/ops/tile_products_inl.h"

namespace coppice::ops {
namespace {

template <typename Element>
struct Distill {
  using Stored = typename Element::Stored;
  using Unit = typename Element::Unit;
  static constexpr int64_t kPer = Element::kPer;

  static void pack(const void* x, int64_t tokens, int64_t width, void* units) {
    const auto* from = static_cast<const Stored*>(x);
    auto* to = static_cast<Unit*>(units);
    for (int64_t t = 0; t < tokens; t += kTile, to += width / kPer * kTile)
      pack_lanes<Element>(from + t * width, width, std::min(kTile, tokens - t), width, width, to);
  }

  // Folds `words` rows of logits into the state of 64 tokens.
  static void fold(const float* logits, int64_t words, int64_t lanes, float* max, float* sum) {
    const Vec scale = _mm512_set1_ps(kLog2E);
    for (int v = 0; v < kVecs; ++v) {
      const Vec before = _mm512_loadu_ps(max + 16 * v);
      Vec largest = before;
      for (int64_t w = 0; w < words; ++w)
        largest = _mm512_max_ps(largest,
                                _mm512_mul_ps(scale, _mm512_loadu_ps(logits + w * lanes + 16 * v)));
      Vec total =
          _mm512_mul_ps(_mm512_loadu_ps(sum + 16 * v), exp2(_mm512_sub_ps(before, largest)));
      for (int64_t w = 0; w < words; ++w)
        total = _mm512_add_ps(
            total,
            exp2(_mm512_fmsub_ps(scale, _mm512_loadu_ps(logits + w * lanes + 16 * v), largest)));
      _mm512_storeu_ps(max + 16 * v, largest);
      _mm512_storeu_ps(sum + 16 * v, total);
    }
  }

  static void logits(const DistillSlice& slice, const void* units, float* logits,
                     const DistillState& state) {
    const int64_t steps = slice.width / kPer;
    std::fill_n(state.max, slice.lanes, -kGone);
    std::fill_n(state.sum, slice.lanes, 0.0F);
    for (int64_t word = slice.begin; word < slice.end; word += kTile) {
      const int64_t words = std::min(kTile, slice.end - word);
      for (int64_t t = 0; t < slice.lanes; t += kTile) {
        float* const to = logits + word * slice.lanes + t;
        multiply<Element>(
            words, kTile, steps, {static_cast<const Unit*>(slice.head) + word * steps, steps, 1},
            {static_cast<const Unit*>(units) + t * steps, kTile}, {to, slice.lanes, false});
        fold(to, words, slice.lanes, state.max + t, state.sum + t);
      }
    }
  }

  // Gradient of the logits of one word for 16 tokens; adds its share of the KL, in bits, to `kl`.
  static Vec slope(const DistillSlopes& in, int64_t word, int64_t lanes, int64_t t, Vec& kl) {
    const Vec scale = _mm512_set1_ps(kLog2E);
    const Vec q = _mm512_fmsub_ps(scale, _mm512_loadu_ps(in.student + word * lanes + t),
                                  _mm512_loadu_ps(in.student_lse + t));
    Vec result = _mm512_mul_ps(_mm512_set1_ps(in.kl_weight + in.ntp_weight), exp2(q));
    if (in.teacher == nullptr) return result;
    const Vec p = _mm512_fmsub_ps(scale, _mm512_loadu_ps(in.teacher + word * lanes + t),
                                  _mm512_loadu_ps(in.teacher_lse + t));
    const Vec share = exp2(p);
    kl = _mm512_fmadd_ps(share, _mm512_sub_ps(p, q), kl);
    return _mm512_fnmadd_ps(_mm512_set1_ps(in.kl_weight), share, result);
  }

  // Rows of the head -> [words / kPer, C] units of neighbouring words; an odd last one gets zeros.
  static void pack_words(const DistillSlice& slice, int64_t word, int64_t words, Unit* to) {
    const auto* from = static_cast<const Stored*>(slice.head) + word * slice.width;
    auto* out = reinterpret_cast<Stored*>(to);
    for (int64_t w = 0; w < (words + kPer - 1) / kPer * kPer; ++w) {
      Stored* row = out + w / kPer * slice.width * kPer + w % kPer;
      for (int64_t c = 0; c < slice.width; ++c)
        row[c * kPer] = w < words ? from[w * slice.width + c] : Stored{};
    }
  }

  static void slopes(const DistillSlice& slice, const DistillSlopes& in) {
    constexpr int64_t kWords = 2 * kTile;
    const Buffer<Unit> head = make_buffer<Unit>(kWords / kPer * slice.width);
    alignas(64) Unit units[kWords / kPer * kTile];
    std::fill_n(in.kl, slice.lanes, 0.0F);
    for (int64_t word = slice.begin; word < slice.end; word += kWords) {
      const int64_t words = std::min(kWords, slice.end - word);
      if (in.gradient != nullptr) pack_words(slice, word, words, head.get());
      for (int64_t t = 0; t < slice.lanes; t += kTile) {
        for (int v = 0; v < kVecs; ++v)
          fill_units(in, word, words, slice.lanes, t + 16 * v, units + 16 * v);
        if (in.gradient == nullptr) continue;
        multiply<Element>(slice.width, kTile, (words + kPer - 1) / kPer,
                          {head.get(), 1, slice.width}, {units, kTile},
                          {in.gradient + t, slice.lanes, word > slice.begin});
      }
    }
  }

  // The slopes of `words` words for 16 tokens, as units whose rows are 64 apart.
  static void fill_units(const DistillSlopes& in, int64_t word, int64_t words, int64_t lanes,
                         int64_t t, Unit* to) {
    Vec kl = _mm512_loadu_ps(in.kl + t);
    for (int64_t w = 0; w < words; w += kPer) {
      Vec rows[kPer];
      for (int64_t j = 0; j < kPer; ++j)
        rows[j] = w + j < words ? slope(in, word + w + j, lanes, t, kl) : _mm512_setzero_ps();
      Element::store_units(to + w / kPer * kTile, rows);
    }
    _mm512_storeu_ps(in.kl + t, kl);
    for (int64_t lane = 0; lane < 16; ++lane) {  // the words that came next
      const int64_t w = in.targets[t + lane] - word;
      if (w < 0 || w >= words) continue;
      Vec unused = _mm512_setzero_ps();
      alignas(64) float value[16];
      _mm512_store_ps(value, slope(in, word + w, lanes, t, unused));
      auto* out = reinterpret_cast<Stored*>(to);
      out[(w / kPer * kTile + lane) * kPer + w % kPer] =
          Element::from_float(value[lane] - in.ntp_weight);
    }
  }

  static constexpr float kGone = 1e30F;
  static constexpr DistillKernels kAll = {sizeof(Stored), kPer, pack, logits, slopes};
};

}  // namespace
}  // namespace coppice::ops
