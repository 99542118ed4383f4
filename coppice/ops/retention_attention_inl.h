// The tile kernels of retention attention, for an Element of tile_products_inl.h. Lanes are queries
// where logits are concerned, so that the softmax needs no sum across lanes.
#pragma once

#include "coppice/ops/tile_products_inl.h"

namespace coppice::ops {
namespace {

static_assert(kTile == kRetentionTile);

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
  static Vec bias(Vec fade, Vec age, Vec pressure, int64_t squarings) {
    return _mm512_sub_ps(_mm512_setzero_ps(),
                         log2_one_plus(passed(fade, age, pressure, squarings)));
  }
  static Vec slope(Vec fade, Vec age, Vec pressure, int64_t squarings) {
    const Vec one = _mm512_set1_ps(1.0F), y = passed(fade, age, pressure, squarings);
    return _mm512_sub_ps(one, _mm512_div_ps(one, _mm512_add_ps(one, y)));
  }
};

template <typename Element, typename Fading>
struct Kernels {
  using Stored = typename Element::Stored;
  using Unit = typename Element::Unit;
  static constexpr int64_t kPer = Element::kPer;

  static void pack(const void* x, int64_t stride, int64_t tokens, int64_t width, void* rows,
                   void* units) {
    const auto* from = static_cast<const Stored*>(x);
    const int64_t padded = padded_width(width);
    const int64_t all = retention_tiles(tokens) * kTile;
    auto* to = static_cast<Stored*>(rows);
    for (int64_t t = 0; to != nullptr && t < all; ++t) {
      const int64_t held = t < tokens ? width : 0;
      std::copy_n(from + t * stride, held, to + t * padded);
      std::fill_n(to + t * padded + held, padded - held, Stored{});
    }
    to = static_cast<Stored*>(units);
    for (int64_t t = 0; to != nullptr && t < all; ++t)
      for (int64_t d = 0; d < padded; ++d)
        to[(t / kPer * padded + d) * kPer + t % kPer] =
            t < tokens && d < width ? from[t * stride + d] : Stored{};
  }

  static __mmask16 not_future(Vec age) {
    return _mm512_cmp_ps_mask(age, _mm512_setzero_ps(), _CMP_GE_OQ);
  }
  static Vec lane_numbers(int64_t first) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first))));
  }

  struct Running {
    alignas(64) float max[kTile], sum[kTile];
  };

  // logits [64 keys, 64 queries] -> weights relative to the running maximum, as units; state and
  // `acc` [width, 64] follow. `offset` is the first query's place less the first key's.
  static void fold_weights(float* logits, const float* fade, const RetentionQueries& queries,
                           const float* pressure, int64_t offset, Running& state, float* acc,
                           int64_t width, Unit* weights) {
    const Vec scales = _mm512_set1_ps(queries.scale * kLog2E);
    for (int v = 0; v < kVecs; ++v) {
      const Vec pressures = _mm512_load_ps(pressure + 16 * v);
      const Vec first_age = lane_numbers(offset + 16 * v);
      const Vec before = _mm512_load_ps(state.max + 16 * v);
      Vec largest = before;
      for (int64_t i = 0; i < kTile; ++i) {
        float* at = logits + i * kTile + 16 * v;
        const Vec age = _mm512_sub_ps(first_age, _mm512_set1_ps(static_cast<float>(i)));
        const Vec bias = Fading::bias(_mm512_set1_ps(fade[i]), age, pressures, queries.squarings);
        Vec x = _mm512_fmadd_ps(_mm512_load_ps(at), scales, bias);
        if (offset == 0) x = _mm512_mask_blend_ps(not_future(age), _mm512_set1_ps(-kInfinity), x);
        largest = _mm512_max_ps(largest, x);
        _mm512_store_ps(at, x);
      }
      Vec sum = _mm512_load_ps(state.sum + 16 * v);
      if (_mm512_cmp_ps_mask(largest, before, _CMP_NEQ_UQ) != 0) {
        const Vec factor = exp2(_mm512_sub_ps(before, largest));
        sum = _mm512_mul_ps(sum, factor);
        for (int64_t d = 0; d < width; ++d) {
          float* at = acc + d * kTile + 16 * v;
          _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), factor));
        }
        _mm512_store_ps(state.max + 16 * v, largest);
      }
      for (int64_t i = 0; i < kTile; i += kPer) {
        Vec x[kPer];
        for (int64_t j = 0; j < kPer; ++j) {
          x[j] = exp2(_mm512_sub_ps(_mm512_load_ps(logits + (i + j) * kTile + 16 * v), largest));
          sum = _mm512_add_ps(sum, x[j]);
        }
        Element::store_units(weights + i / kPer * kTile + 16 * v, x);
      }
      _mm512_store_ps(state.sum + 16 * v, sum);
    }
  }

  static void forward(const RetentionKeys& keys, const RetentionQueries& queries, int64_t tile) {
    const int64_t padded = padded_width(keys.width);
    const int64_t first = tile * kTile;
    const int64_t count = std::min(kTile, keys.tokens - first);
    const Buffer<Unit> lanes = make_buffer<Unit>(padded / kPer * kTile);
    const Buffer<float> acc = make_buffer<float>(padded * kTile);
    alignas(64) float logits[kTile * kTile];
    alignas(64) Unit weights[kTile / kPer * kTile];
    alignas(64) float pressure[kTile] = {};
    if (Fading::kCut) std::copy_n(queries.pressure + first, count, pressure);
    Running state;
    std::fill_n(state.max, kTile, -kInfinity);
    std::fill_n(state.sum, kTile, 0.0F);
    std::fill_n(acc.get(), padded * kTile, 0.0F);
    pack_lanes<Element>(static_cast<const Stored*>(queries.q) + first * queries.q_stride,
                        queries.q_stride, count, keys.width, padded, lanes.get());
    // The tile on the diagonal first: every query sees a key there, so the maximum is finite.
    for (int64_t other = tile; other >= 0; --other) {
      const int64_t from = other * kTile;
      multiply<Element>(
          kTile, kTile, padded / kPer,
          {static_cast<const Unit*>(keys.k_rows) + from * padded / kPer, padded / kPer, 1},
          {lanes.get(), kTile}, {logits, kTile, false});
      fold_weights(logits, keys.fade + from, queries, pressure, first - from, state, acc.get(),
                   keys.width, weights);
      multiply<Element>(keys.width, kTile, kTile / kPer,
                        {static_cast<const Unit*>(keys.v_units) + from / kPer * padded, 1, padded},
                        {weights, kTile}, {acc.get(), kTile, true});
    }
    for (int64_t t = 0; t < count; ++t) {
      Stored* out = static_cast<Stored*>(queries.out) + (first + t) * queries.out_stride;
      const float inverse = 1.0F / state.sum[t];
      for (int64_t d = 0; d < keys.width; ++d)
        out[d] = Element::from_float(acc[d * kTile + t] * inverse);
      queries.lse[(first + t) * queries.lse_stride] =
          kLn2 * (state.max[t] + std::log2(state.sum[t]));
    }
  }

  // What the backward pass keeps of the queries it works on, tile after tile.
  struct QuerySide {
    Buffer<Unit> q_lanes, given_lanes;  // [P / kPer, 64] a tile: to contract over the width
    Buffer<Unit> q_units, given_units;  // [64 / kPer, P] a tile: to contract over queries
    Buffer<float> lse, common;          // [64] a tile: log2 of the softmax's sum; given . out
    Buffer<float> pressure;             // [64] a tile
    Buffer<float> slope;                // [P, 64] a tile: gradient of q, transposed
  };

  static QuerySide pack_queries(const RetentionQueries& queries, int64_t begin, int64_t end,
                                int64_t tokens, int64_t width, const RetentionSums& sums) {
    const int64_t padded = padded_width(width), count = (end - begin) * kTile;
    QuerySide side{make_buffer<Unit>(count * padded / kPer),
                   make_buffer<Unit>(count * padded / kPer),
                   make_buffer<Unit>(count * padded / kPer),
                   make_buffer<Unit>(count * padded / kPer),
                   make_buffer<float>(count),
                   make_buffer<float>(count),
                   make_buffer<float>(count),
                   make_buffer<float>(count * padded)};
    std::fill_n(side.slope.get(), count * padded, 0.0F);
    std::fill_n(side.lse.get(), count, kInfinity);  // a query that is not there has no weights
    std::fill_n(side.common.get(), count, 0.0F);
    std::fill_n(side.pressure.get(), count, 0.0F);
    const int64_t first = begin * kTile;
    const int64_t held = std::min(end * kTile, tokens) - first;
    if (Fading::kCut) std::copy_n(queries.pressure + first, held, side.pressure.get());
    const Stored* q = static_cast<const Stored*>(queries.q) + first * queries.q_stride;
    const Stored* given = static_cast<const Stored*>(sums.given) + first * queries.out_stride;
    const Stored* out = static_cast<const Stored*>(sums.out) + first * queries.out_stride;
    pack(q, queries.q_stride, held, width, nullptr, side.q_units.get());
    pack(given, queries.out_stride, held, width, nullptr, side.given_units.get());
    for (int64_t t = 0; t < held; t += kTile) {
      const int64_t here = std::min(kTile, held - t);
      pack_lanes<Element>(q + t * queries.q_stride, queries.q_stride, here, width, padded,
                          side.q_lanes.get() + t * padded / kPer);
      pack_lanes<Element>(given + t * queries.out_stride, queries.out_stride, here, width, padded,
                          side.given_lanes.get() + t * padded / kPer);
    }
    for (int64_t t = 0; t < held; ++t) {
      const Stored *a = given + t * queries.out_stride, *b = out + t * queries.out_stride;
      float sum = 0;
      for (int64_t d = 0; d < width; ++d) sum += Element::to_float(a[d]) * Element::to_float(b[d]);
      side.common[t] = sum;
      side.lse[t] = kLog2E * queries.lse[(first + t) * queries.lse_stride];
    }
    return side;
  }

  // Of one pair of tiles; rows are keys, lanes queries.
  struct Pair {
    alignas(64) float products[kTile * kTile];  // k . q
    alignas(64) float pulls[kTile * kTile];     // v . given
    alignas(64) Unit weights[kTile * kTile / kPer];
    alignas(64) Unit slopes[kTile * kTile / kPer];       // gradient of the logits
    alignas(64) Unit slope_units[kTile * kTile / kPer];  // the same, key pairs side by side
    alignas(64) float fade[kTile * 16];                  // gradient of log beta, 16 queries apart
  };

  // What the queries of a tile bring; `to_pressure` [64] is added to.
  struct QueryTile {
    const float *lse, *common, *pressure;
    float* to_pressure;
  };

  static void fill_slopes(Pair& pair, const float* fade, const RetentionQueries& queries,
                          int64_t offset, const QueryTile& tile) {
    const Vec scales = _mm512_set1_ps(queries.scale * kLog2E);
    Vec first_age[kVecs], less[kVecs], shared[kVecs], pressure[kVecs], felt[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      pressure[v] = _mm512_loadu_ps(tile.pressure + 16 * v);
      felt[v] = _mm512_setzero_ps();
      first_age[v] = lane_numbers(offset + 16 * v);
      less[v] = _mm512_loadu_ps(tile.lse + 16 * v);
      shared[v] = _mm512_loadu_ps(tile.common + 16 * v);
    }
    for (int64_t i = 0; i < kTile; i += kPer) {
      Vec slope[kPer][kVecs];
      for (int64_t j = 0; j < kPer; ++j) {
        const int64_t row = (i + j) * kTile;
        const Vec key = _mm512_set1_ps(static_cast<float>(i + j));
        const Vec fades = _mm512_set1_ps(fade[i + j]);
        Vec weight[kVecs];
        Vec sum = _mm512_load_ps(pair.fade + (i + j) * 16);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          const Vec age = _mm512_sub_ps(first_age[v], key);
          const Vec bias = Fading::bias(fades, age, pressure[v], queries.squarings);
          const Vec x = _mm512_fmadd_ps(_mm512_load_ps(pair.products + row + 16 * v), scales, bias);
          weight[v] = exp2(_mm512_sub_ps(x, less[v]));
          if (offset == 0) weight[v] = _mm512_maskz_mov_ps(not_future(age), weight[v]);
          const Vec pull = _mm512_load_ps(pair.pulls + row + 16 * v);
          slope[j][v] = _mm512_mul_ps(weight[v], _mm512_sub_ps(pull, shared[v]));
          const Vec rate = Fading::slope(fades, age, pressure[v], queries.squarings);
          sum = _mm512_fmadd_ps(slope[j][v], rate, sum);
          if constexpr (Fading::kCut) felt[v] = _mm512_fmadd_ps(slope[j][v], rate, felt[v]);
        }
        _mm512_store_ps(pair.fade + (i + j) * 16, sum);
        Element::store_row(pair.weights + row / kPer, weight);
        Element::store_row(pair.slopes + row / kPer, slope[j]);
      }
      if constexpr (kPer > 1)
        for (int v = 0; v < kVecs; ++v) {
          const Vec rows[2] = {slope[0][v], slope[kPer - 1][v]};
          Element::store_units(pair.slope_units + i / kPer * kTile + 16 * v, rows);
        }
    }
    if constexpr (Fading::kCut)
      for (int v = 0; v < kVecs; ++v) {
        float* at = tile.to_pressure + 16 * v;
        _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), felt[v]));
      }
  }

  static void backward(const RetentionKeys& keys, const RetentionQueries& queries, int64_t begin,
                       int64_t end, const RetentionSums& sums) {
    const int64_t width = keys.width, padded = padded_width(width), block = kTile * padded / kPer;
    const QuerySide side = pack_queries(queries, begin, end, keys.tokens, width, sums);
    const auto pair_memory = make_buffer<Pair>(1);
    Pair& pair = pair_memory[0];
    const Unit* slope_units = kPer > 1 ? pair.slope_units : pair.slopes;
    const Buffer<float> to_pressure = make_buffer<float>((end - begin) * kTile);
    std::fill_n(to_pressure.get(), (end - begin) * kTile, 0.0F);
    for (int64_t other = 0; other < end; ++other) {
      const int64_t from = other * kTile;
      const auto of_keys = [&](const void* units) {
        return static_cast<const Unit*>(units) + other * block;
      };
      std::fill_n(pair.fade, kTile * 16, 0.0F);
      const int64_t first = std::max(other, begin);
      for (int64_t tile = first; tile < end; ++tile) {
        const int64_t at = tile - begin;
        multiply<Element>(kTile, kTile, padded / kPer, {of_keys(keys.k_rows), padded / kPer, 1},
                          {side.q_lanes.get() + at * block, kTile}, {pair.products, kTile, false});
        multiply<Element>(kTile, kTile, padded / kPer, {of_keys(keys.v_rows), padded / kPer, 1},
                          {side.given_lanes.get() + at * block, kTile}, {pair.pulls, kTile, false});
        fill_slopes(pair, keys.fade + from, queries, tile * kTile - from,
                    {side.lse.get() + at * kTile, side.common.get() + at * kTile,
                     side.pressure.get() + at * kTile, to_pressure.get() + at * kTile});
        const bool add = tile > first;
        multiply<Element>(kTile, padded, kTile / kPer, {pair.weights, kTile / kPer, 1},
                          {side.given_units.get() + at * block, padded},
                          {sums.v + from * padded, padded, add});
        multiply<Element>(kTile, padded, kTile / kPer, {pair.slopes, kTile / kPer, 1},
                          {side.q_units.get() + at * block, padded},
                          {sums.k + from * padded, padded, add});
        multiply<Element>(width, kTile, kTile / kPer, {of_keys(keys.k_units), 1, padded},
                          {slope_units, kTile},
                          {side.slope.get() + at * padded * kTile, kTile, true});
      }
      for (int64_t i = 0; i < kTile; ++i)
        sums.log_beta[from + i] = _mm512_reduce_add_ps(_mm512_load_ps(pair.fade + i * 16));
    }
    for (int64_t t = begin * kTile; t < std::min(end * kTile, keys.tokens); ++t) {
      Stored* to = static_cast<Stored*>(sums.q) + t * queries.q_stride;
      const float* from = side.slope.get() + (t / kTile - begin) * padded * kTile + t % kTile;
      for (int64_t d = 0; d < width; ++d)
        to[d] = Element::from_float(queries.scale * from[d * kTile]);
      if (Fading::kCut) sums.pressure[t] = to_pressure[t - begin * kTile];
    }
  }

  static constexpr RetentionKernels kAll = {sizeof(Stored), pack, forward, backward};
};

}  // namespace
}  // namespace coppice::ops
