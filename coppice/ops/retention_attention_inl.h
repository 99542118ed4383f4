// The tile kernels of retention attention, for an Element of tile_products_inl.h. Lanes are queries
// where logits are concerned, so that the softmax needs no sum across lanes.
#pragma once

#include "coppice/ops/key_tiles_inl.h"
#include "coppice/ops/tile_products_inl.h"

namespace coppice::ops {
namespace {

static_assert(kTile == kRetentionTile);

template <typename Element, typename Fading>
struct Kernels {
  using Stored = typename Element::Stored;
  using Unit = typename Element::Unit;
  using KeyTile = typename KeyTiles<Element, Fading>::KeyTile;
  using Past = typename KeyTiles<Element, Fading>::Past;
  static constexpr int64_t kPer = Element::kPer;

  static __mmask16 not_future(Vec age) {
    return _mm512_cmp_ps_mask(age, _mm512_setzero_ps(), _CMP_GE_OQ);
  }
  struct Running {
    alignas(64) float max[kTile], sum[kTile];
  };

  // logits [64 keys, 64 queries] -> weights relative to the running maximum, as units; state and
  // `acc` [width, 64] follow. `first` is the first query's place; on the diagonal tile some keys
  // are newer than some queries.
  static void fold_weights(float* logits, const KeyTile& keys, const RetentionQueries& queries,
                           const float* pressure, int64_t first, bool diagonal, Running& state,
                           float* acc, int64_t width, Unit* weights) {
    const Vec scales = _mm512_set1_ps(queries.scale * kLog2E);
    for (int v = 0; v < kVecs; ++v) {
      const Vec pressures = _mm512_load_ps(pressure + 16 * v);
      const Vec places = lane_numbers(first + 16 * v);
      const Vec before = _mm512_load_ps(state.max + 16 * v);
      Vec largest = before;
      for (int64_t i = 0; i < kTile; ++i) {
        float* at = logits + i * kTile + 16 * v;
        const Vec age = _mm512_sub_ps(places, _mm512_set1_ps(keys.place[i]));
        const Vec bias =
            Fading::bias(_mm512_set1_ps(keys.fade[i]), age, pressures, queries.squarings);
        Vec x = _mm512_fmadd_ps(_mm512_load_ps(at), scales, bias);
        if (diagonal) x = _mm512_mask_blend_ps(not_future(age), _mm512_set1_ps(-kInfinity), x);
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
    Past past(keys, queries, tile, /*backward=*/false);
    for (int64_t other = -1; other < past.tiles(); ++other) {
      const KeyTile key_tile =
          other < 0 ? KeyTiles<Element, Fading>::tile_of(keys, tile) : past.load(other);
      multiply<Element>(kTile, kTile, padded / kPer, {key_tile.k_rows, padded / kPer, 1},
                        {lanes.get(), kTile}, {logits, kTile, false});
      fold_weights(logits, key_tile, queries, pressure, first, other < 0, state, acc.get(),
                   keys.width, weights);
      multiply<Element>(keys.width, kTile, kTile / kPer, {key_tile.v_units, 1, padded},
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
    const auto pack = KeyTiles<Element, Fading>::pack;
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

  static void fill_slopes(Pair& pair, const KeyTile& keys, const RetentionQueries& queries,
                          int64_t first, bool diagonal, const QueryTile& tile) {
    const Vec scales = _mm512_set1_ps(queries.scale * kLog2E);
    Vec places[kVecs], less[kVecs], shared[kVecs], pressure[kVecs], felt[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      pressure[v] = _mm512_loadu_ps(tile.pressure + 16 * v);
      felt[v] = _mm512_setzero_ps();
      places[v] = lane_numbers(first + 16 * v);
      less[v] = _mm512_loadu_ps(tile.lse + 16 * v);
      shared[v] = _mm512_loadu_ps(tile.common + 16 * v);
    }
    for (int64_t i = 0; i < kTile; i += kPer) {
      Vec slope[kPer][kVecs];
      for (int64_t j = 0; j < kPer; ++j) {
        const int64_t row = (i + j) * kTile;
        const Vec key = _mm512_set1_ps(keys.place[i + j]);
        const Vec fades = _mm512_set1_ps(keys.fade[i + j]);
        Vec weight[kVecs];
        Vec sum = _mm512_load_ps(pair.fade + (i + j) * 16);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          const Vec age = _mm512_sub_ps(places[v], key);
          const Vec bias = Fading::bias(fades, age, pressure[v], queries.squarings);
          const Vec x = _mm512_fmadd_ps(_mm512_load_ps(pair.products + row + 16 * v), scales, bias);
          weight[v] = exp2(_mm512_sub_ps(x, less[v]));
          if (diagonal) weight[v] = _mm512_maskz_mov_ps(not_future(age), weight[v]);
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

  // One pair of tiles: adds to the gradient of the queries; `to_k` and `to_v` [64, P] are set or
  // added to; pair.fade, a row a key, is added to.
  struct PairStep {
    const RetentionQueries& queries;
    const QuerySide& side;
    int64_t width, padded, begin;
    float* to_pressure;

    void run(Pair& pair, const KeyTile& key_tile, int64_t tile, bool diagonal, float* to_k,
             float* to_v, bool add) const {
      const int64_t at = tile - begin, block = kTile * padded / kPer;
      const Unit* slope_units = kPer > 1 ? pair.slope_units : pair.slopes;
      multiply<Element>(kTile, kTile, padded / kPer, {key_tile.k_rows, padded / kPer, 1},
                        {side.q_lanes.get() + at * block, kTile}, {pair.products, kTile, false});
      multiply<Element>(kTile, kTile, padded / kPer, {key_tile.v_rows, padded / kPer, 1},
                        {side.given_lanes.get() + at * block, kTile}, {pair.pulls, kTile, false});
      fill_slopes(pair, key_tile, queries, tile * kTile, diagonal,
                  {side.lse.get() + at * kTile, side.common.get() + at * kTile,
                   side.pressure.get() + at * kTile, to_pressure + at * kTile});
      multiply<Element>(kTile, padded, kTile / kPer, {pair.weights, kTile / kPer, 1},
                        {side.given_units.get() + at * block, padded}, {to_v, padded, add});
      multiply<Element>(kTile, padded, kTile / kPer, {pair.slopes, kTile / kPer, 1},
                        {side.q_units.get() + at * block, padded}, {to_k, padded, add});
      multiply<Element>(width, kTile, kTile / kPer, {key_tile.k_units, 1, padded},
                        {slope_units, kTile},
                        {side.slope.get() + at * padded * kTile, kTile, true});
    }
  };

  static float sum_of_fade(const Pair& pair, int64_t key) {
    return _mm512_reduce_add_ps(_mm512_load_ps(pair.fade + key * 16));
  }

  // Keys outside: each key's sums stay in the cache while the queries pass by.
  static void backward_by_keys(const RetentionKeys& keys, const PairStep& step, Pair& pair,
                               int64_t end, const RetentionSums& sums) {
    for (int64_t other = 0; other < end; ++other) {
      const KeyTile key_tile = KeyTiles<Element, Fading>::tile_of(keys, other);
      const int64_t from = other * kTile, first = std::max(other, step.begin);
      std::fill_n(pair.fade, kTile * 16, 0.0F);
      for (int64_t tile = first; tile < end; ++tile)
        step.run(pair, key_tile, tile, tile == other, sums.k + from * step.padded,
                 sums.v + from * step.padded, tile > first);
      for (int64_t i = 0; i < kTile; ++i) sums.log_beta[from + i] = sum_of_fade(pair, i);
    }
  }

  // Queries outside: of the keys before them only those that are still there are worked on.
  static void backward_by_queries(const RetentionKeys& keys, const PairStep& step, Pair& pair,
                                  int64_t end, const RetentionSums& sums) {
    const int64_t padded = step.padded;
    std::fill_n(sums.k, end * kTile * padded, 0.0F);
    std::fill_n(sums.v, end * kTile * padded, 0.0F);
    std::fill_n(sums.log_beta, end * kTile, 0.0F);
    const Buffer<float> to_k = make_buffer<float>(kTile * padded);
    const Buffer<float> to_v = make_buffer<float>(kTile * padded);
    for (int64_t tile = step.begin; tile < end; ++tile) {
      Past past(keys, step.queries, tile, /*backward=*/true);
      for (int64_t other = -1; other < past.tiles(); ++other) {
        const KeyTile key_tile =
            other < 0 ? KeyTiles<Element, Fading>::tile_of(keys, tile) : past.load(other);
        std::fill_n(pair.fade, kTile * 16, 0.0F);
        step.run(pair, key_tile, tile, other < 0, to_k.get(), to_v.get(), false);
        const int64_t held = other < 0 ? kTile : past.held(other);
        for (int64_t i = 0; i < held; ++i) {
          const auto key = static_cast<int64_t>(key_tile.place[i]);
          add(to_k.get() + i * padded, padded, sums.k + key * padded);
          add(to_v.get() + i * padded, padded, sums.v + key * padded);
          sums.log_beta[key] += sum_of_fade(pair, i);
        }
      }
    }
  }

  static void add(const float* from, int64_t padded, float* to) {
    for (int64_t d = 0; d < padded; d += 16)
      _mm512_storeu_ps(to + d, _mm512_add_ps(_mm512_loadu_ps(to + d), _mm512_loadu_ps(from + d)));
  }

  static void backward(const RetentionKeys& keys, const RetentionQueries& queries, int64_t begin,
                       int64_t end, const RetentionSums& sums) {
    const int64_t width = keys.width, padded = padded_width(width);
    const QuerySide side = pack_queries(queries, begin, end, keys.tokens, width, sums);
    const auto pair_memory = make_buffer<Pair>(1);
    const Buffer<float> to_pressure = make_buffer<float>((end - begin) * kTile);
    std::fill_n(to_pressure.get(), (end - begin) * kTile, 0.0F);
    const PairStep step{queries, side, width, padded, begin, to_pressure.get()};
    if constexpr (Fading::kCut) {
      backward_by_queries(keys, step, pair_memory[0], end, sums);
    } else {
      backward_by_keys(keys, step, pair_memory[0], end, sums);
    }
    for (int64_t t = begin * kTile; t < std::min(end * kTile, keys.tokens); ++t) {
      Stored* to = static_cast<Stored*>(sums.q) + t * queries.q_stride;
      const float* from = side.slope.get() + (t / kTile - begin) * padded * kTile + t % kTile;
      for (int64_t d = 0; d < width; ++d)
        to[d] = Element::from_float(queries.scale * from[d * kTile]);
      if (Fading::kCut) sums.pressure[t] = to_pressure[t - begin * kTile];
    }
  }

  static constexpr RetentionKernels kAll = {sizeof(Stored), KeyTiles<Element, Fading>::pack,
                                            forward, backward};
};

}  // namespace
}  // namespace coppice::ops
