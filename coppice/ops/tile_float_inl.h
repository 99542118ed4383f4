// The Element of tile_products_inl.h for float32.
#pragma once

namespace coppice::ops {
namespace {

struct FloatElement {
  using Stored = float;
  using Unit = float;
  static constexpr int64_t kPer = 1;
  static __m512 dot(__m512 acc, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, acc); }
  static __m512 broadcast(const Unit* x) { return _mm512_set1_ps(*x); }
  static void store_row(Unit* to, const __m512* x) {
    for (int v = 0; v < 4; ++v) _mm512_store_ps(to + 16 * v, x[v]);
  }
  static void store_units(Unit* to, const __m512* x) { _mm512_store_ps(to, x[0]); }
  static float to_float(Stored x) { return x; }
  static Stored from_float(float x) { return x; }
};

}  // namespace
}  // namespace coppice::ops
