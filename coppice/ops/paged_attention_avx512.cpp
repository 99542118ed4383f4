// Paged attention for AVX-512: 32 registers of 16 floats hold 4 blocks x 6 queries of logits, or 4
// value vectors x 6 queries of sums.
#include "coppice/ops/paged_attention_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,fma,f16c,avx2")
// GCC 12 warns of its own header's deliberately undefined registers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace coppice::ops {
namespace {

struct Half16 {
  uint16_t bits;
};
struct Brain16 {
  uint16_t bits;
};

struct Simd {
  using Vec = __m512;
  static constexpr int kScoreBlocks = 4;
  static constexpr int kValueVecs = 4;
  static constexpr int kTileQueries = 6;

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec broadcast(float x) { return _mm512_set1_ps(x); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static Vec load(const Half16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec load(const Brain16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Vec load_part(const float* p, int n) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << n) - 1U), p);
  }
  static Vec load_part(const Half16* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1U << n) - 1U), p));
  }
  static Vec load_part(const Brain16* p, int n) {
    const __m256i bits = _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1U << n) - 1U), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  // The instruction returns its second operand when either is NaN.
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec exp2(Vec x) {
    x = _mm512_max_ps(_mm512_set1_ps(-127.0F), x);
    const Vec whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec r = _mm512_sub_ps(x, whole);
    Vec p = _mm512_set1_ps(kExp2[5]);
    for (int i = 4; i >= 0; --i) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2[i]));
    p = _mm512_scalef_ps(_mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F)), whole);
    const __mmask16 tiny = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_LT_OQ);
    return _mm512_mask_mov_ps(p, tiny, _mm512_setzero_ps());
  }
};

}  // namespace
}  // namespace coppice::ops

#include "coppice/ops/paged_attention_inl.h"

namespace coppice::ops {
const PagedKernels& avx512_paged_kernels() { return kKernels; }
}  // namespace coppice::ops

#pragma GCC pop_options

#else

namespace coppice::ops {
const PagedKernels& avx512_paged_kernels() { return portable_paged_kernels(); }
}  // namespace coppice::ops

#endif
