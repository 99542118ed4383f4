// Small dense products and what goes with them, for AVX-512. Included between
// "#pragma GCC push_options" and "pop_options" of a file that has chosen its instruction set, after
// the headers that this file needs: <algorithm> <cmath> <cstdint> <cstring> <immintrin.h> <limits>
// <memory> <new>.
//
// Products contract over units: one float, or a pair of neighbouring bfloat16. An Element
// (tile_float_inl.h, tile_bf16_inl.h) says how:
//
//   Stored, Unit, kPer    type in memory, what a product contracts at a time, Stored per Unit
//   dot(acc, a, b)        acc + a b, lane by lane, over the kPer numbers of a unit
//   broadcast(unit)       what it points at, to all lanes
//   store_row(to, x)      four vectors, 64 numbers, as Stored one after the other
//   store_units(to, x)    kPer rows of one vector each, side by side, as 16 units
//   to_float, from_float  one Stored
#pragma once

namespace coppice::ops {
namespace {

using Vec = __m512;
constexpr int64_t kTile = 64;
constexpr int kVecs = 4;  // of a tile's row
constexpr float kLog2E = 1.44269504088896f;
constexpr float kLn2 = 0.693147180559945f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// 2^x; 0 below 2^-126. A polynomial on |r| <= 1/2, to 2e-9 before rounding.
inline Vec exp2(Vec x) {
  const Vec whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vec r = _mm512_sub_ps(x, whole);
  Vec p = _mm512_set1_ps(0x1.41fbbcp-13F);
  for (float c :
       {0x1.5f3e54p-10F, 0x1.3b2d4cp-7F, 0x1.c6aee8p-5F, 0x1.ebfbdcp-3F, 0x1.62e430p-1F, 1.0F})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  const __mmask16 alive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(alive, p, whole);
}

template <typename T>
struct Freed {
  void operator()(T* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
template <typename T>
using Buffer = std::unique_ptr<T[], Freed<T>>;

template <typename T>
Buffer<T> make_buffer(int64_t size) {
  return Buffer<T>(static_cast<T*>(
      ::operator new[](static_cast<std::size_t>(size) * sizeof(T), std::align_val_t{64})));
}

// A left factor: element (row, step) at units[row * row_stride + step * step_stride].
template <typename Unit>
struct Left {
  const Unit* units;
  int64_t row_stride, step_stride;
};

// A right factor: 16 lanes of step s begin at units[s * step_stride].
template <typename Unit>
struct Right {
  const Unit* units;
  int64_t step_stride;
};

struct Target {
  float* sums;
  int64_t row_stride;
  bool add;  // to what is there
};

template <typename Element, int kRows, int kColumns>
[[gnu::always_inline]] inline void multiply_block(Left<typename Element::Unit> a,
                                                  Right<typename Element::Unit> b, int64_t steps,
                                                  Target c) {
  Vec acc[kRows][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v)
      acc[r][v] = c.add ? _mm512_loadu_ps(c.sums + r * c.row_stride + 16 * v) : _mm512_setzero_ps();
  for (int64_t s = 0; s < steps; ++s) {
    Vec right[kColumns];
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v)
      right[v] = _mm512_loadu_ps(b.units + s * b.step_stride + 16 * v);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec left = Element::broadcast(a.units + r * a.row_stride + s * a.step_stride);
#pragma GCC unroll 4
      for (int v = 0; v < kColumns; ++v) acc[r][v] = Element::dot(acc[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v)
      _mm512_storeu_ps(c.sums + r * c.row_stride + 16 * v, acc[r][v]);
}

template <typename Element, int kColumns>
void multiply_rows(int64_t rows, Left<typename Element::Unit> a, Right<typename Element::Unit> b,
                   int64_t steps, Target c) {
  const auto advance = [&](int64_t by) {
    a.units += by * a.row_stride;
    c.sums += by * c.row_stride;
    rows -= by;
  };
  for (; rows >= 6; advance(6)) multiply_block<Element, 6, kColumns>(a, b, steps, c);
  for (; rows >= 4; advance(4)) multiply_block<Element, 4, kColumns>(a, b, steps, c);
  for (; rows >= 1; advance(1)) multiply_block<Element, 1, kColumns>(a, b, steps, c);
}

// c [rows, columns] (+)= a [rows, steps] b [steps, columns]; columns a multiple of 16.
template <typename Element>
void multiply(int64_t rows, int64_t columns, int64_t steps, Left<typename Element::Unit> a,
              Right<typename Element::Unit> b, Target c) {
  for (; columns > 0; columns -= 64, b.units += 64, c.sums += 64) {
    if (columns >= 64) {
      multiply_rows<Element, 4>(rows, a, b, steps, c);
    } else if (columns == 48) {
      multiply_rows<Element, 3>(rows, a, b, steps, c);
    } else if (columns == 32) {
      multiply_rows<Element, 2>(rows, a, b, steps, c);
    } else {
      multiply_rows<Element, 1>(rows, a, b, steps, c);
    }
  }
}

// x [tokens <= 64, width] -> [padded / kPer, 64] units of neighbours in width: a right factor whose
// lanes are tokens. Padding is zero.
template <typename Element>
void pack_lanes(const typename Element::Stored* x, int64_t stride, int64_t tokens, int64_t width,
                int64_t padded, typename Element::Unit* to) {
  using Stored = typename Element::Stored;
  constexpr int64_t kPer = Element::kPer;
  auto* out = reinterpret_cast<Stored*>(to);
  if (tokens < kTile || padded != width) std::fill_n(out, padded * kTile, Stored{});
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t d = 0; d < width; ++d)
      out[(d / kPer * kTile + t) * kPer + d % kPer] = x[t * stride + d];
}

}  // namespace
}  // namespace coppice::ops
