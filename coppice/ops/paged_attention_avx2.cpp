// Paged attention for AVX2 with FMA and F16C: a vector of 16 floats is two registers, and 16
// registers hold 1 block x 6 queries of logits, or 1 value vector x 6 queries of sums.
#include "coppice/ops/paged_attention_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace coppice::ops {
namespace {

struct Half16 {
  uint16_t bits;
};
struct Brain16 {
  uint16_t bits;
};

struct Simd {
  struct Vec {
    __m256 lo, hi;
  };
  static constexpr int kScoreBlocks = 1;
  static constexpr int kValueVecs = 1;
  static constexpr int kTileQueries = 6;

  static Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Vec broadcast(float x) {
    const __m256 v = _mm256_set1_ps(x);
    return {v, v};
  }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Vec load(const Half16* p) { return {half8(p), half8(p + 8)}; }
  static Vec load(const Brain16* p) { return {brain8(p), brain8(p + 8)}; }
  template <typename T>
  static Vec load_part(const T* p, int n) {
    T full[16] = {};
    for (int i = 0; i < n; ++i) full[i] = p[i];
    return load(full);
  }
  static void store(float* p, Vec v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
  }
  static Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  // The instruction returns its second operand when either is NaN.
  static Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static Vec exp2(Vec x) { return {exp2_half(x.lo), exp2_half(x.hi)}; }

 private:
  static __m256 half8(const Half16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static __m256 brain8(const Brain16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static __m256 exp2_half(__m256 x) {
    x = _mm256_max_ps(_mm256_set1_ps(-127.0F), x);
    const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 r = _mm256_sub_ps(x, whole);
    __m256 p = _mm256_set1_ps(kExp2[5]);
    for (int i = 4; i >= 0; --i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2[i]));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F));
    const __m256i exponent =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
    const __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0F), _CMP_LT_OQ);
    return _mm256_andnot_ps(tiny, p);
  }
};

}  // namespace
}  // namespace coppice::ops

#include "coppice/ops/paged_attention_inl.h"

namespace coppice::ops {
const PagedKernels& avx2_paged_kernels() { return kKernels; }
}  // namespace coppice::ops

#pragma GCC pop_options

#else

namespace coppice::ops {
const PagedKernels& avx2_paged_kernels() { return portable_paged_kernels(); }
}  // namespace coppice::ops

#endif
