// The kernels of paged attention, written once over a vector of 16 floats. Each instruction set's
// file sets its compiler target, defines `Simd` and includes this; everything here is local to that
// file. No lambda, no library template: they would be compiled for the wrong target, or leak code
// for this one into the others.
//
// Simd offers: Vec (16 floats), zero, broadcast, load (float, Half16, Brain16), load_part (first n
// values, zeros behind), store, add, mul, fma (a * b + c), max (NaN wins), exp2 (of x <= 0; 0 below
// -126), and the tile sizes kScoreBlocks, kValueVecs, kTileQueries that fill its registers.
#pragma once

#include "coppice/ops/paged_attention_kernels.h"

namespace coppice::ops {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

inline float reduce_max(Simd::Vec v) {
  alignas(64) float lanes[16];
  Simd::store(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < 16; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

inline float reduce_add(Simd::Vec v) {
  alignas(64) float lanes[16];
  Simd::store(lanes, v);
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  return lanes[0];
}

inline float exp2_one(float x) {
  alignas(64) float lanes[16];
  Simd::store(lanes, Simd::exp2(Simd::broadcast(x)));
  return lanes[0];
}

// Blocks of a row lie anywhere in the pool, where no hardware looks ahead: what comes next is
// fetched by hand, line by line, while the arithmetic goes on. Null is nothing to fetch.
inline void fetch(const char* from, int64_t offset) {
  if (from != nullptr) __builtin_prefetch(from + offset);
}

constexpr int64_t kLine = 64;  // bytes
constexpr int64_t kAhead = 4;  // blocks

// The block of keys, or behind the piece's last one of values, that is read `kAhead` after block b.
template <typename T>
const char* after_keys(const PagedPiece& piece, int64_t b, int64_t blocks) {
  const int64_t block_values = piece.pool->head_dim * kSlots;
  const int64_t next = b + kAhead;
  const void* pool = next < blocks ? piece.pool->keys : piece.pool->values;
  const int64_t at = next < blocks ? next : next - blocks;
  if (at >= blocks) return nullptr;
  return reinterpret_cast<const char*>(static_cast<const T*>(pool) +
                                       piece.blocks[at] * block_values);
}

// The block of values, or behind the piece's last one of the next piece's keys.
template <typename T>
const char* after_values(const PagedPiece& piece, int64_t b, int64_t blocks) {
  const int64_t block_values = piece.pool->head_dim * kSlots;
  const int64_t next = b + kAhead;
  const void* pool = next < blocks ? piece.pool->values : piece.pool->keys;
  if (next >= piece.blocks_left) return nullptr;
  return reinterpret_cast<const char*>(static_cast<const T*>(pool) +
                                       piece.blocks[next] * block_values);
}

// Logits of NQ queries against NB blocks of keys: one key vector is one dimension of 16 entries.
template <typename T, int NB, int NQ>
void score_tile(const T* const* keys, const char* const* next, const float* q, int64_t head_dim,
                float* scores) {
  Simd::Vec acc[NB][NQ];
#pragma GCC unroll 8
  for (int b = 0; b < NB; ++b)
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) acc[b][i] = Simd::zero();
  for (int64_t d = 0; d < head_dim; ++d) {
    Simd::Vec k[NB];
#pragma GCC unroll 8
    for (int b = 0; b < NB; ++b) {
      k[b] = Simd::load(keys[b] + d * kSlots);
      fetch(next[b], d * kSlots * static_cast<int64_t>(sizeof(T)));
    }
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) {
      const Simd::Vec x = Simd::broadcast(q[i * head_dim + d]);
#pragma GCC unroll 8
      for (int b = 0; b < NB; ++b) acc[b][i] = Simd::fma(x, k[b], acc[b][i]);
    }
  }
#pragma GCC unroll 8
  for (int b = 0; b < NB; ++b)
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) Simd::store(scores + i * kPieceEntries + b * kSlots, acc[b][i]);
}

template <typename T, int NQ>
void score_queries(const PagedPiece& piece, int64_t count, const float* q, float* scores) {
  const int64_t head_dim = piece.pool->head_dim;
  const int64_t block_values = head_dim * kSlots;
  const T* pool = static_cast<const T*>(piece.pool->keys);
  const int64_t blocks = (count + kSlots - 1) / kSlots;
  const T* keys[Simd::kScoreBlocks];
  const char* next[Simd::kScoreBlocks];
  int64_t b = 0;
  for (; b + Simd::kScoreBlocks <= blocks; b += Simd::kScoreBlocks) {
    for (int j = 0; j < Simd::kScoreBlocks; ++j) {
      keys[j] = pool + piece.blocks[b + j] * block_values;
      next[j] = after_keys<T>(piece, b + j, blocks);
    }
    score_tile<T, Simd::kScoreBlocks, NQ>(keys, next, q, head_dim, scores + b * kSlots);
  }
  for (; b < blocks; ++b) {
    keys[0] = pool + piece.blocks[b] * block_values;
    next[0] = after_keys<T>(piece, b, blocks);
    score_tile<T, 1, NQ>(keys, next, q, head_dim, scores + b * kSlots);
  }
}

// Weighted sums of `width` value dimensions (NV vectors of them) for NQ queries over `count`
// entries.
template <typename T, int NV, int NQ, bool kPart>
void value_tile(const PagedPiece& piece, int64_t count, int64_t first_dim, int width,
                const float* weights, float* acc_out, int64_t acc_stride) {
  const int64_t head_dim = piece.pool->head_dim;
  const T* pool = static_cast<const T*>(piece.pool->values) + first_dim;
  Simd::Vec acc[NV][NQ];
#pragma GCC unroll 8
  for (int c = 0; c < NV; ++c)
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) acc[c][i] = Simd::zero();
  for (int64_t first = 0; first < count; first += kSlots) {
    const T* values = pool + piece.blocks[first / kSlots] * head_dim * kSlots;
    const int64_t end = count - first < kSlots ? count - first : kSlots;
    const char* next = first_dim == 0
                           ? after_values<T>(piece, first / kSlots, (count + kSlots - 1) / kSlots)
                           : nullptr;
    for (int64_t e = 0; e < end; ++e, values += head_dim) {
      const int64_t row_bytes = head_dim * static_cast<int64_t>(sizeof(T));
      for (int64_t at = 0; at < row_bytes; at += kLine) fetch(next, e * row_bytes + at);
      Simd::Vec v[NV];
#pragma GCC unroll 8
      for (int c = 0; c < NV; ++c)
        v[c] = kPart ? Simd::load_part(values, width) : Simd::load(values + c * 16);
#pragma GCC unroll 8
      for (int i = 0; i < NQ; ++i) {
        const Simd::Vec w = Simd::broadcast(weights[i * kPieceEntries + first + e]);
#pragma GCC unroll 8
        for (int c = 0; c < NV; ++c) acc[c][i] = Simd::fma(w, v[c], acc[c][i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < NV; ++c)
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i)
      Simd::store(acc_out + i * acc_stride + first_dim + c * 16, acc[c][i]);
}

template <typename T, int NQ>
void value_queries(const PagedPiece& piece, int64_t count, const float* weights, float* acc) {
  const int64_t head_dim = piece.pool->head_dim;
  const int64_t stride = padded_head_dim(head_dim);
  constexpr int kWide = Simd::kValueVecs;
  int64_t d = 0;
  for (; d + kWide * 16 <= head_dim; d += kWide * 16)
    value_tile<T, kWide, NQ, false>(piece, count, d, 16, weights, acc, stride);
  for (; d + 16 <= head_dim; d += 16)
    value_tile<T, 1, NQ, false>(piece, count, d, 16, weights, acc, stride);
  if (d < head_dim)
    value_tile<T, 1, NQ, true>(piece, count, d, static_cast<int>(head_dim - d), weights, acc,
                               stride);
}

// Which of the piece's entries a window leaves out: their logits become -inf.
void mask_window(const PagedPiece& piece, int64_t seen, int64_t min_position, float* scores) {
  for (int64_t e = 0; e < seen; ++e) {
    const int64_t slot = piece.blocks[e / kSlots] * kSlots + e % kSlots;
    if (piece.pool->positions[slot] < min_position) scores[e] = kMinusInfinity;
  }
}

// Logits of one query to weights, in place; the first `seen` of `count` entries are visible.
void softmax_row(float* scores, int64_t seen, int64_t count, float* max_out, float* sum_out) {
  const int64_t end = (seen + kSlots - 1) / kSlots * kSlots;
  for (int64_t e = seen; e < end; ++e) scores[e] = kMinusInfinity;
  Simd::Vec best = Simd::broadcast(kMinusInfinity);
  for (int64_t e = 0; e < end; e += 16) best = Simd::max(best, Simd::load(scores + e));
  const float max = reduce_max(best);
  *max_out = max;
  const Simd::Vec shift = Simd::broadcast(max == kMinusInfinity ? 0.0F : -max);
  Simd::Vec sum = Simd::zero();
  for (int64_t e = 0; e < end; e += 16) {
    const Simd::Vec w = Simd::exp2(Simd::add(Simd::load(scores + e), shift));
    sum = Simd::add(sum, w);
    Simd::store(scores + e, w);
  }
  *sum_out = reduce_add(sum);
  for (int64_t e = end; e < count; ++e) scores[e] = 0.0F;
}

template <typename T, int NQ>
void fold_queries(const PagedPiece& piece, int64_t first, const PagedState& state) {
  const int64_t head_dim = piece.pool->head_dim;
  alignas(64) float scores[NQ * kPieceEntries];
  int64_t count = 0;
  for (int64_t i = first; i < first + NQ; ++i)
    count = piece.visible[i] > count ? piece.visible[i] : count;
  if (count > 0) score_queries<T, NQ>(piece, count, piece.q + first * head_dim, scores);
  for (int64_t i = 0; i < NQ; ++i) {
    const int64_t at = first + i;
    const int64_t seen = piece.visible[at] > 0 ? piece.visible[at] : 0;
    float* row = scores + i * kPieceEntries;
    if (piece.min_position != nullptr) mask_window(piece, seen, piece.min_position[at], row);
    softmax_row(row, seen, count, state.max + at, state.sum + at);
  }
  value_queries<T, NQ>(piece, count, scores, state.acc + first * padded_head_dim(head_dim));
}

// No query sees any of the piece: a window has left it behind.
bool outside_window(const PagedPiece& piece) {
  if (piece.min_position == nullptr) return false;
  int64_t oldest = piece.min_position[0];
  int64_t count = 0;
  for (int64_t i = 0; i < piece.num_queries; ++i) {
    oldest = piece.min_position[i] < oldest ? piece.min_position[i] : oldest;
    count = piece.visible[i] > count ? piece.visible[i] : count;
  }
  for (int64_t e = 0; e < count; ++e) {
    const int64_t slot = piece.blocks[e / kSlots] * kSlots + e % kSlots;
    if (piece.pool->positions[slot] >= oldest) return false;
  }
  return true;
}

void clear_state(int64_t n, int64_t head_dim, const PagedState& state) {
  for (int64_t i = 0; i < n; ++i) {
    state.max[i] = kMinusInfinity;
    state.sum[i] = 0.0F;
  }
  for (int64_t i = 0; i < n * padded_head_dim(head_dim); ++i) state.acc[i] = 0.0F;
}

template <typename T>
void fold_typed(const PagedPiece& piece, const PagedState& state) {
  constexpr int kMax = Simd::kTileQueries;
  static_assert(kMax <= 6);
  const int64_t tiles = (piece.num_queries + kMax - 1) / kMax;
  int64_t first = 0;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t left = tiles - tile;
    const int64_t take = (piece.num_queries - first + left - 1) / left;
    switch (take) {
      case 1:
        fold_queries<T, 1>(piece, first, state);
        break;
      case 2:
        fold_queries<T, 2>(piece, first, state);
        break;
      case 3:
        fold_queries<T, 3>(piece, first, state);
        break;
      case 4:
        fold_queries<T, 4>(piece, first, state);
        break;
      case 5:
        fold_queries<T, (kMax < 5 ? 1 : 5)>(piece, first, state);
        break;
      default:
        fold_queries<T, (kMax < 6 ? 1 : 6)>(piece, first, state);
        break;
    }
    first += take;
  }
}

void fold(const PagedPiece& piece, const PagedState& state) {
  if (outside_window(piece)) {
    clear_state(piece.num_queries, piece.pool->head_dim, state);
    return;
  }
  switch (piece.pool->type) {
    case PoolType::kF32:
      fold_typed<float>(piece, state);
      break;
    case PoolType::kF16:
      fold_typed<Half16>(piece, state);
      break;
    case PoolType::kBF16:
      fold_typed<Brain16>(piece, state);
      break;
  }
}

void merge(int64_t n, int64_t head_dim, const PagedState& total, const PagedState& next) {
  const int64_t stride = padded_head_dim(head_dim);
  for (int64_t i = 0; i < n; ++i) {
    if (next.max[i] == kMinusInfinity) continue;
    const bool fresh = total.max[i] == kMinusInfinity;
    const float max = fresh || next.max[i] > total.max[i] ? next.max[i] : total.max[i];
    const float a = fresh ? 0.0F : exp2_one(total.max[i] - max);
    const float b = exp2_one(next.max[i] - max);
    total.sum[i] = total.sum[i] * a + next.sum[i] * b;
    total.max[i] = max;
    float* to = total.acc + i * stride;
    const float* from = next.acc + i * stride;
    const Simd::Vec va = Simd::broadcast(a);
    const Simd::Vec vb = Simd::broadcast(b);
    for (int64_t d = 0; d < stride; d += 16)
      Simd::store(to + d, Simd::fma(Simd::load(from + d), vb, Simd::mul(Simd::load(to + d), va)));
  }
}

constexpr PagedKernels kKernels = {fold, merge};

}  // namespace
}  // namespace coppice::ops
