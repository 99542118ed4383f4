// The keys of retention attention as its kernels take them, tile by tile, and how they fade. With a
// cut, keys that are gone for all queries of a tile are left out: what is left is gathered, so a
// step costs what the budget costs and not what the length does.
#pragma once

#include "coppice/ops/tile_products_inl.h"

namespace coppice::ops {
namespace {

static_assert(kTile == kRetentionTile);

inline Vec lane_numbers(int64_t first) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_cvtepi32_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first))));
}

// log2(1 + y) for y >= 0, infinity included; to 2e-7.
inline Vec log2_one_plus(Vec y) {
  const Vec one = _mm512_set1_ps(1.0F);
  const Vec x = _mm512_add_ps(one, y);
  const Vec m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_zero);
  const Vec whole = _mm512_getexp_ps(_mm512_mul_ps(x, _mm512_set1_ps(4.0F / 3.0F)));
  const Vec s = _mm512_div_ps(_mm512_sub_ps(m, one), _mm512_add_ps(m, one));
  const Vec s2 = _mm512_mul_ps(s, s);
  Vec p = _mm512_set1_ps(2 * kLog2E / 7);
  for (float c : {2 * kLog2E / 5, 2 * kLog2E / 3, 2 * kLog2E})
    p = _mm512_fmadd_ps(p, s2, _mm512_set1_ps(c));
  return _mm512_fmadd_ps(p, s, whole);
}

// How keys fade, in units of log2. `age` may be negative where the caller masks.
struct ByPower {  // beta^age
  static constexpr bool kCut = false;
  static Vec bias(Vec fade, Vec age, Vec, int64_t) { return _mm512_mul_ps(fade, age); }
  // Its slope by log beta, up to what is common to the key.
  static Vec slope(Vec, Vec age, Vec, int64_t) { return age; }
};
struct ByCut {  // 1 / (1 + y), y = (age |log beta| pressure)^(2^squarings)
  static constexpr bool kCut = true;
  static Vec passed(Vec fade, Vec age, Vec pressure, int64_t squarings) {
    Vec y = _mm512_mul_ps(_mm512_mul_ps(age, pressure), fade);
    for (int64_t i = 0; i < squarings; ++i) y = _mm512_mul_ps(y, y);
    return y;
  }
  // Minus infinity where the key is gone.
  static Vec bias(Vec fade, Vec age, Vec pressure, int64_t squarings) {
    const Vec y = passed(fade, age, pressure, squarings);
    const __mmask16 there = _mm512_cmp_ps_mask(y, _mm512_set1_ps(kCutEnd), _CMP_LT_OQ);
    const Vec left = _mm512_sub_ps(_mm512_setzero_ps(), log2_one_plus(y));
    return _mm512_mask_blend_ps(there, _mm512_set1_ps(-kInfinity), left);
  }
  static Vec slope(Vec fade, Vec age, Vec pressure, int64_t squarings) {
    const Vec one = _mm512_set1_ps(1.0F), y = passed(fade, age, pressure, squarings);
    return _mm512_sub_ps(one, _mm512_div_ps(one, _mm512_add_ps(one, y)));
  }
};

template <typename Element, typename Fading>
struct KeyTiles {
  using Stored = typename Element::Stored;
  using Unit = typename Element::Unit;
  static constexpr int64_t kPer = Element::kPer;

  static void pack(const void* x, int64_t stride, int64_t tokens, int64_t width, void* rows,
                   void* units) {
    pack_tokens(static_cast<const Stored*>(x), stride, tokens, retention_tiles(tokens) * kTile,
                width, static_cast<Stored*>(rows), static_cast<Stored*>(units),
                [](int64_t t) { return t; });
  }

  // Token which(0), which(1), ... which(count - 1) of x, padded to `all`.
  template <typename Which>
  static void pack_tokens(const Stored* x, int64_t stride, int64_t count, int64_t all,
                          int64_t width, Stored* rows, Stored* units, const Which& which) {
    const int64_t padded = padded_width(width);
    for (int64_t t = 0; rows != nullptr && t < all; ++t) {
      const int64_t held = t < count ? width : 0;
      if (held > 0) std::copy_n(x + which(t) * stride, held, rows + t * padded);
      std::fill_n(rows + t * padded + held, padded - held, Stored{});
    }
    for (int64_t t = 0; units != nullptr && t < all; ++t) {
      Stored* const to = units + t / kPer * padded * kPer + t % kPer;
      const int64_t held = t < count ? width : 0;
      const Stored* const from = x + (held > 0 ? which(t) * stride : 0);
      for (int64_t d = 0; d < held; ++d) to[d * kPer] = from[d];
      for (int64_t d = held; d < padded; ++d) to[d * kPer] = Stored{};
    }
  }

  // Sixty-four keys, neighbours or gathered.
  struct KeyTile {
    const Unit *k_rows, *k_units, *v_rows, *v_units;
    const float* fade;
    alignas(64) float place[kTile];  // in the document
  };

  static KeyTile tile_of(const RetentionKeys& keys, int64_t tile) {
    const int64_t at = tile * kTile * padded_width(keys.width) / kPer;
    const auto part = [at](const void* x) {
      return x == nullptr ? nullptr : static_cast<const Unit*>(x) + at;
    };
    KeyTile result{part(keys.k_rows),  part(keys.k_units),       part(keys.v_rows),
                   part(keys.v_units), keys.fade + tile * kTile, {}};
    for (int64_t i = 0; i < kTile; ++i) result.place[i] = static_cast<float>(tile * kTile + i);
    return result;
  }

  // The keys before a tile of queries: all of them, newest tile first; with a cut those alone that
  // are still there for one of the queries, gathered, where that leaves out enough to be worth it.
  class Past final {
   public:
    Past(const RetentionKeys& keys, const RetentionQueries& queries, int64_t tile, bool backward)
        : keys_(keys), tile_(tile), backward_(backward) {
      if constexpr (Fading::kCut) find_those_left(queries);
    }

    int64_t tiles() const { return gathered_ ? retention_tiles(count_) : tile_; }
    int64_t held(int64_t other) const {
      return gathered_ ? std::min(kTile, count_ - other * kTile) : kTile;
    }

    // Valid until the next call.
    KeyTile load(int64_t other) {
      if (!gathered_) return tile_of(keys_, tile_ - 1 - other);
      const int32_t* const which = left_.get() + other * kTile;
      const int64_t held = this->held(other), block = kTile * padded_width(keys_.width);
      const auto part = [&](int64_t n) { return memory_.get() + n * block; };
      const auto token = [which](int64_t t) { return static_cast<int64_t>(which[t]); };
      const auto pack_part = [&](const void* x, Stored* rows, Stored* units) {
        pack_tokens(static_cast<const Stored*>(x), keys_.stride, held, kTile, keys_.width, rows,
                    units, token);
      };
      pack_part(keys_.k, part(0), backward_ ? part(1) : nullptr);
      pack_part(keys_.v, backward_ ? part(2) : nullptr, backward_ ? nullptr : part(3));
      const auto unit = [&](int64_t n) { return reinterpret_cast<const Unit*>(part(n)); };
      KeyTile result{unit(0), unit(1), unit(2), unit(3), fade_, {}};
      for (int64_t i = 0; i < kTile; ++i) {
        fade_[i] = i < held ? keys_.fade[which[i]] : kGone;
        result.place[i] = i < held ? static_cast<float>(which[i]) : 0.0F;
      }
      return result;
    }

   private:
    static constexpr float kGone = 1e30F;       // |log beta| of a slot that holds no key
    static constexpr float kWorthwhile = 0.7F;  // gather when no more than this share is left

    void find_those_left(const RetentionQueries& queries) {
      const int64_t first = tile_ * kTile;
      const float* const pressure = queries.pressure + first;
      const float least =
          *std::min_element(pressure, pressure + std::min(kTile, keys_.tokens - first));
      if (first == 0 || !(least > 0)) return;
      left_ = make_buffer<int32_t>(first + 16);
      // y < kCutEnd for the tile's first query, whose ages are the lowest; rounding errs towards
      // taking a key along.
      const float end =
          std::pow(kCutEnd, 1.0F / static_cast<float>(1 << queries.squarings)) * 1.001F;
      const Vec limit = _mm512_set1_ps(end), pressures = _mm512_set1_ps(least);
      for (int64_t i = 0; i < first; i += 16) {
        const Vec age = _mm512_sub_ps(_mm512_set1_ps(static_cast<float>(first)), lane_numbers(i));
        const Vec product =
            _mm512_mul_ps(_mm512_mul_ps(age, pressures), _mm512_loadu_ps(keys_.fade + i));
        const __mmask16 left = _mm512_cmp_ps_mask(product, limit, _CMP_LT_OQ);
        const __m512i numbers = _mm512_cvtps_epi32(lane_numbers(i));
        _mm512_storeu_si512(left_.get() + count_, _mm512_maskz_compress_epi32(left, numbers));
        count_ += __builtin_popcount(left);
      }
      gathered_ = static_cast<float>(count_) <= kWorthwhile * static_cast<float>(first);
      if (gathered_) memory_ = make_buffer<Stored>(4 * kTile * padded_width(keys_.width));
    }

    const RetentionKeys& keys_;
    int64_t tile_;
    bool backward_, gathered_ = false;
    int64_t count_ = 0;
    Buffer<int32_t> left_;   // keys, rising
    Buffer<Stored> memory_;  // rows and units of k and v
    alignas(64) float fade_[kTile];
  };
};

}  // namespace
}  // namespace coppice::ops
