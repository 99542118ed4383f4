// The kernels for AVX-512 with VNNI. What they compute is said in gemm_kernels.h, and in plain code
// in gemm_portable.cpp.
#include "coppice/ops/gemm_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <limits>

// GCC 12 takes the undefined upper operands inside its own intrinsics for a fault.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

// After the includes, so that no inline function of theirs is compiled for this level.
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")

namespace coppice::ops {
namespace {

// How far ahead of a stream of weights to ask for it: loads from x hide the stream from the
// processor's own look-ahead.
constexpr int64_t kAheadBytes = 4096;

inline void store_codes(int16_t* codes, __m512i values) {
  const __m256i words = _mm512_cvtsepi32_epi16(values);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes),
                      _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8));
}

void quantise(const float* x, int64_t first, int64_t last, int64_t row,
              const ActivationTile& tile) {
  x += first * 32;
  const __m512 zero = _mm512_setzero_ps();
  for (int64_t g = first; g < last; ++g, x += 32) {
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    const __m512 poison = _mm512_add_ps(_mm512_mul_ps(a, zero), _mm512_mul_ps(b, zero));
    const bool finite = _mm512_cmp_ps_mask(poison, poison, _CMP_UNORD_Q) == 0;
    float scale = largest < 0x1.0p-100f ? 0.0f : largest / 32767.0f;
    if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
    const __m512 inverse = _mm512_set1_ps(scale > 0.0f ? 1.0f / scale : 0.0f);
    const __mmask16 keep = scale > 0.0f ? 0xffff : 0;
    const __m512i qa = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(a, inverse));
    const __m512i qb = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(b, inverse));
    const int64_t at = g * tile.rows + row;
    store_codes(tile.codes + at * 32, qa);
    store_codes(tile.codes + at * 32 + 16, qb);
    const int sa = _mm512_reduce_add_epi32(qa), sb = _mm512_reduce_add_epi32(qb);
    const int64_t at16 = 2 * g * tile.rows + row;
    tile.scales[at] = scale;
    tile.neg_sums32[at] = -(sa + sb);
    tile.sums32[at] = scale * static_cast<float>(sa + sb);
    tile.neg_sums16[at16] = -sa;
    tile.neg_sums16[at16 + tile.rows] = -sb;
    tile.sums16[at16] = scale * static_cast<float>(sa);
    tile.sums16[at16 + tile.rows] = scale * static_cast<float>(sb);
  }
}

inline __m512i broadcast_pair(const int16_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  return _mm512_set1_epi32(word);
}

inline __m512 load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Splits a line of codes into pairs of columns, widened to 16 bits.
template <int kBits>
[[gnu::always_inline]] inline void split_line(__m512i line, __m512i (&pairs)[16 / kBits]) {
  if constexpr (kBits == 4) {
    const __m512i low = _mm512_set1_epi16(15);
    pairs[0] = _mm512_and_si512(line, low);
    pairs[1] = _mm512_and_si512(_mm512_srli_epi16(line, 8), low);
    pairs[2] = _mm512_and_si512(_mm512_srli_epi16(line, 4), low);
    pairs[3] = _mm512_srli_epi16(line, 12);
  } else {
    pairs[0] = _mm512_and_si512(line, _mm512_set1_epi16(255));
    pairs[1] = _mm512_srli_epi16(line, 8);
  }
}

// Adds the products of one group of columns for kRows rows of the tile.
template <int kBits, int kGroup, int kRows>
[[gnu::always_inline]] inline void add_group(const uint8_t* codes, const int16_t* x,
                                             __m512i* dots) {
  constexpr int kPairs = 16 / kBits;
  constexpr bool kStream = kRows <= 4;  // a prompt's rows find the weights cached
#pragma GCC unroll 8
  for (int line = 0; line < kGroup / (2 * kPairs); ++line) {
    __m512i pairs[kPairs];
    const uint8_t* from = codes + line * 64;
    if constexpr (kStream) {
      _mm_prefetch(reinterpret_cast<const char*>(from) + kAheadBytes, _MM_HINT_T0);
    }
    split_line<kBits>(_mm512_load_si512(from), pairs);
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i) {
      const int16_t* at = x + 2 * (line * kPairs + i);
#pragma GCC unroll 8
      for (int n = 0; n < kRows; ++n) {
        dots[n] = _mm512_dpwssd_epi32(dots[n], pairs[i], broadcast_pair(at + n * 32));
      }
    }
  }
}

template <int kBits, int kGroup, bool kMinimum, int kRows>
void multiply_tile(const CodeBlocks& w, int64_t block, const ActivationTile& tile,
                   const Output& out) {
  constexpr int kGroupBytes = kGroup * 16 * kBits / 8;
  const uint8_t* codes = w.data + block * w.block_bytes;
  const uint8_t* scales = codes;
  const float* sums = kGroup == 32 ? tile.sums32 : tile.sums16;
  const int32_t* neg_sums = kGroup == 32 ? tile.neg_sums32 : tile.neg_sums16;
  __m512 totals[kRows];
#pragma GCC unroll 8
  for (int n = 0; n < kRows; ++n) totals[n] = _mm512_setzero_ps();
  const int64_t groups = w.cols / kGroup;
  for (int64_t g = 0; g < groups; ++g) {
    if (kMinimum || g % 2 == 0) {
      scales = codes;
      codes += 64;
    } else {
      scales += 32;
    }
    const int64_t x_group = g * kGroup / 32 * kRows;  // of the activations
    const int16_t* x = tile.codes + x_group * 32 + g * kGroup % 32;
    __m512i dots[kRows];
#pragma GCC unroll 8
    for (int n = 0; n < kRows; ++n) {
      dots[n] = kMinimum ? _mm512_setzero_si512()
                         : _mm512_slli_epi32(_mm512_set1_epi32(neg_sums[g * kRows + n]), kBits - 1);
    }
    add_group<kBits, kGroup, kRows>(codes, x, dots);
    const __m512 scale = load_halves(scales);
    const __m512 minimum = kMinimum ? load_halves(scales + 32) : _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int n = 0; n < kRows; ++n) {
      const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(tile.scales[x_group + n]));
      totals[n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[n]), both, totals[n]);
      if constexpr (kMinimum) {
        totals[n] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(sums[g * kRows + n]), totals[n]);
      }
    }
    codes += kGroupBytes;
  }
  const int64_t left = w.rows - block * kBlockRows;
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
  const __m512 unit = _mm512_set1_ps(w.unit);
#pragma GCC unroll 8
  for (int n = 0; n < kRows; ++n) {
    _mm512_mask_storeu_ps(out.data + n * out.stride + block * kBlockRows, mask,
                          _mm512_mul_ps(totals[n], unit));
  }
}

template <int kBits, int kGroup, bool kMinimum>
void multiply_shape(const CodeBlocks& w, int64_t block, const ActivationTile& tile,
                    const Output& out) {
  switch (tile.rows) {
    case 1:
      return multiply_tile<kBits, kGroup, kMinimum, 1>(w, block, tile, out);
    case 2:
      return multiply_tile<kBits, kGroup, kMinimum, 2>(w, block, tile, out);
    case 3:
      return multiply_tile<kBits, kGroup, kMinimum, 3>(w, block, tile, out);
    case 4:
      return multiply_tile<kBits, kGroup, kMinimum, 4>(w, block, tile, out);
    case 5:
      return multiply_tile<kBits, kGroup, kMinimum, 5>(w, block, tile, out);
    case 6:
      return multiply_tile<kBits, kGroup, kMinimum, 6>(w, block, tile, out);
    case 7:
      return multiply_tile<kBits, kGroup, kMinimum, 7>(w, block, tile, out);
    default:
      return multiply_tile<kBits, kGroup, kMinimum, 8>(w, block, tile, out);
  }
}

void multiply_codes(const CodeBlocks& w, int64_t block, const ActivationTile& tile,
                    const Output& out) {
  if (w.bits == 4) {
    if (w.group == 32) {
      return w.has_minimum ? multiply_shape<4, 32, true>(w, block, tile, out)
                           : multiply_shape<4, 32, false>(w, block, tile, out);
    }
    return w.has_minimum ? multiply_shape<4, 16, true>(w, block, tile, out)
                         : multiply_shape<4, 16, false>(w, block, tile, out);
  }
  if (w.group == 16) return multiply_shape<8, 16, false>(w, block, tile, out);
  return w.has_minimum ? multiply_shape<8, 32, true>(w, block, tile, out)
                       : multiply_shape<8, 32, false>(w, block, tile, out);
}

template <int kRows>
void multiply_bf16_rows(const Bf16Blocks& w, int64_t block, const float* x, const Output& out) {
  const uint16_t* data = w.data + block * kBlockRows * w.cols;
  const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  __m512 even[kRows], odd[kRows];
#pragma GCC unroll 8
  for (int n = 0; n < kRows; ++n) even[n] = odd[n] = _mm512_setzero_ps();
  for (int64_t col = 0; col < w.cols; col += 2, data += 32) {
    const __m512i pairs = _mm512_load_si512(data);
    _mm_prefetch(reinterpret_cast<const char*>(data) + kAheadBytes, _MM_HINT_T0);
    const __m512 w0 = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    const __m512 w1 = _mm512_castsi512_ps(_mm512_and_si512(pairs, high_half));
#pragma GCC unroll 8
    for (int n = 0; n < kRows; ++n) {
      const float* at = x + n * w.cols + col;
      even[n] = _mm512_fmadd_ps(w0, _mm512_set1_ps(at[0]), even[n]);
      odd[n] = _mm512_fmadd_ps(w1, _mm512_set1_ps(at[1]), odd[n]);
    }
  }
  const int64_t left = w.rows - block * kBlockRows;
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
#pragma GCC unroll 8
  for (int n = 0; n < kRows; ++n) {
    _mm512_mask_storeu_ps(out.data + n * out.stride + block * kBlockRows, mask,
                          _mm512_add_ps(even[n], odd[n]));
  }
}

void multiply_bf16(const Bf16Blocks& w, int64_t block, const float* x, int64_t n,
                   const Output& out) {
  switch (n) {
    case 1:
      return multiply_bf16_rows<1>(w, block, x, out);
    case 2:
      return multiply_bf16_rows<2>(w, block, x, out);
    case 3:
      return multiply_bf16_rows<3>(w, block, x, out);
    case 4:
      return multiply_bf16_rows<4>(w, block, x, out);
    case 5:
      return multiply_bf16_rows<5>(w, block, x, out);
    case 6:
      return multiply_bf16_rows<6>(w, block, x, out);
    case 7:
      return multiply_bf16_rows<7>(w, block, x, out);
    default:
      return multiply_bf16_rows<8>(w, block, x, out);
  }
}

}  // namespace

const GemmKernels& avx512_gemm_kernels() {
  static constexpr GemmKernels kKernels = {quantise, multiply_codes, multiply_bf16};
  return kKernels;
}

}  // namespace coppice::ops

#pragma GCC pop_options
#else

namespace coppice::ops {
const GemmKernels& avx512_gemm_kernels() { return portable_gemm_kernels(); }
}  // namespace coppice::ops

#endif
