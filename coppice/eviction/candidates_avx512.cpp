// The look over 16 entries or 16 blocks at once, with AVX-512.
#include "coppice/eviction/candidates_inl.h"

#if defined(__x86_64__)
#include <immintrin.h>

// GCC 12 takes the undefined upper operands inside its own intrinsics for a fault.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

// After the includes, so that no inline function of theirs is compiled for this level.
#pragma GCC push_options
#pragma GCC target("avx512f")

namespace coppice {
namespace {

struct WideLanes {
  static uint32_t look(const LookTask& task, int64_t slot, int64_t held, BlockLook& out) {
    const auto here = static_cast<__mmask16>((1U << held) - 1);
    const __m512i position = _mm512_loadu_si512(task.positions + slot);
    const __m512 age =
        _mm512_add_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(task.now), position)),
                      _mm512_set1_ps(task.form.age_offset));
    const __m512 slope = task.form.slope_is_log_beta ? _mm512_loadu_ps(task.log_betas + slot)
                                                     : _mm512_set1_ps(task.form.slope);
    const __m512 constant =
        _mm512_mul_ps(_mm512_set1_ps(task.form.aux_weight), _mm512_loadu_ps(task.aux + slot));
    const __m512 score = _mm512_add_ps(_mm512_mul_ps(age, slope), constant);
    const __m512i bits = _mm512_castps_si512(_mm512_add_ps(score, _mm512_setzero_ps()));
    const __m512i flip =
        _mm512_and_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(INT32_MAX));
    const __mmask16 nan = _mm512_cmp_ps_mask(score, score, _CMP_UNORD_Q);
    const __m512i rank =
        _mm512_mask_mov_epi32(_mm512_xor_si512(bits, flip), nan, _mm512_set1_epi32(INT32_MIN));
    _mm512_storeu_si512(out.ranks, rank);
    const __mmask16 free = unpinned(
        task, position,
        _mm512_mask_cmp_epi32_mask(here, position, _mm512_set1_epi32(task.sinks), _MM_CMPINT_NLT));
    const float infinity = std::numeric_limits<float>::infinity();
    const __m512 known = _mm512_mask_mov_ps(score, nan, _mm512_set1_ps(-infinity));
    out.low = _mm512_reduce_min_ps(_mm512_mask_mov_ps(_mm512_set1_ps(infinity), free, known));
    out.fall = _mm512_reduce_min_ps(_mm512_maskz_mov_ps(free, slope));
    const __mmask16 old =
        _mm512_mask_cmp_epi32_mask(free, position, _mm512_set1_epi32(task.recent), _MM_CMPINT_LT);
    return _mm512_mask_cmp_epi32_mask(old, rank, _mm512_set1_epi32(task.cut), _MM_CMPINT_LE);
  }

  // Those of `free` that no pin holds.
  static __mmask16 unpinned(const LookTask& task, __m512i position, __mmask16 free) {
    for (const PositionSpan& pin : task.pins) {
      const __mmask16 behind =
          _mm512_mask_cmp_epi32_mask(free, position, _mm512_set1_epi32(pin.begin), _MM_CMPINT_NLT);
      const __mmask16 held =
          _mm512_mask_cmp_epi32_mask(behind, position, _mm512_set1_epi32(pin.end), _MM_CMPINT_LT);
      free = static_cast<__mmask16>(free & ~held);
    }
    return free;
  }

  static uint32_t screen(const LookTask& task, const BlockTable& row, const RowBounds& bounds,
                         int64_t first, int64_t count) {
    const auto here = static_cast<__mmask16>((1U << count) - 1);
    const uint64_t* stamps = row.stamps.data() + first;
    const uint64_t* known = bounds.stamps.data() + first;
    const auto low_half = static_cast<__mmask8>(here), high_half = static_cast<__mmask8>(here >> 8);
    const uint32_t same_low =
        _mm512_mask_cmpeq_epi64_mask(low_half, _mm512_maskz_loadu_epi64(low_half, stamps),
                                     _mm512_maskz_loadu_epi64(low_half, known));
    const uint32_t same_high = high_half == 0
                                   ? 0
                                   : _mm512_mask_cmpeq_epi64_mask(
                                         high_half, _mm512_maskz_loadu_epi64(high_half, stamps + 8),
                                         _mm512_maskz_loadu_epi64(high_half, known + 8));
    const __m512 low = _mm512_maskz_loadu_ps(here, bounds.low.data() + first);
    const __m512 fall = _mm512_maskz_loadu_ps(here, bounds.fall.data() + first);
    const __m512i newest = _mm512_maskz_loadu_epi32(here, bounds.newest.data() + first);
    const __m512 steps = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(task.now), newest));
    const __m512 bound = _mm512_add_ps(low, _mm512_mul_ps(steps, fall));
    const __m512 size = _mm512_add_ps(_mm512_add_ps(_mm512_abs_ps(bound), _mm512_abs_ps(low)),
                                      _mm512_set1_ps(16.0f));
    const __m512 least = _mm512_sub_ps(bound, _mm512_mul_ps(size, _mm512_set1_ps(1e-6f)));
    const uint32_t above =
        _mm512_mask_cmp_ps_mask(here, least, _mm512_set1_ps(task.cut_score), _CMP_GT_OQ);
    return here & ~(above & (same_low | same_high << 8));
  }
};

void collect_wide(const LookTask& task, const CandidateRows& rows) {
  collect_with<WideLanes>(task, rows);
}

}  // namespace

CollectFn avx512_collect() { return collect_wide; }

}  // namespace coppice

#pragma GCC pop_options
#else

namespace coppice {
CollectFn avx512_collect() { return nullptr; }
}  // namespace coppice

#endif
