// The Element of tile_products_inl.h for bfloat16, with the processor's products of it.
#pragma once

namespace coppice::ops {
namespace {

struct BrainElement {
  using Stored = uint16_t;
  using Unit = float;  // holds the bits of a pair; no arithmetic is done with it
  static constexpr int64_t kPer = 2;
  static __m512 dot(__m512 acc, __m512 a, __m512 b) {
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
  }
  // Pairs are written as uint16_t, so they are not read as floats here.
  static __m512 broadcast(const Unit* x) {
    int32_t bits;
    std::memcpy(&bits, x, sizeof(bits));
    return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
  }
  // The first argument lands in the upper half.
  static __m512i round(__m512 upper, __m512 lower) {
    return (__m512i)_mm512_cvtne2ps_pbh(upper, lower);
  }
  static void store_row(Unit* to, const __m512* x) {
    _mm512_store_si512(to, round(x[1], x[0]));
    _mm512_store_si512(to + 16, round(x[3], x[2]));
  }
  static void store_units(Unit* to, const __m512* x) {
    const __m512i halves = round(x[1], x[0]);
    const __m512i even = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(halves));
    const __m512i odd = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(halves, 1));
    _mm512_store_si512(to, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
  }
  static float to_float(Stored x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
  static Stored from_float(float x) {
    return static_cast<Stored>(_mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(x)), 0));
  }
};

}  // namespace
}  // namespace coppice::ops
