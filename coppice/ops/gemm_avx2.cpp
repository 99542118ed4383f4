// The kernels for AVX2. What they compute is said in gemm_kernels.h, and in plain code in
// gemm_portable.cpp. A block's 16 rows are done as two halves of 8, up to 4 rows of x at a time.
#include "coppice/ops/gemm_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <limits>

// After the includes, so that no inline function of theirs is compiled for this level.
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace coppice::ops {
namespace {

inline float reduce_max(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

inline int reduce_add(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// Writes 16 codes and returns their sum.
inline int store_codes(int16_t* codes, __m256i a, __m256i b) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes),
                      _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8));
  return reduce_add(_mm256_add_epi32(a, b));
}

void quantise(const float* x, int64_t first, int64_t last, int64_t row,
              const ActivationTile& tile) {
  x += first * 32;
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256 zero = _mm256_setzero_ps();
  for (int64_t g = first; g < last; ++g, x += 32) {
    __m256 v[4], largest = zero, poison = zero;
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + 8 * i);
      largest = _mm256_max_ps(largest, _mm256_and_ps(v[i], magnitude));
      poison = _mm256_add_ps(poison, _mm256_mul_ps(v[i], zero));
    }
    const float top = reduce_max(largest);
    float scale = top < 0x1.0p-100f ? 0.0f : top / 32767.0f;
    if (_mm256_movemask_ps(_mm256_cmp_ps(poison, poison, _CMP_UNORD_Q)) != 0) {
      scale = std::numeric_limits<float>::quiet_NaN();
    }
    const bool keep = scale > 0.0f;
    const __m256 inverse = _mm256_set1_ps(keep ? 1.0f / scale : 0.0f);
    __m256i q[4];
    for (int i = 0; i < 4; ++i) {
      q[i] = keep ? _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)) : _mm256_setzero_si256();
    }
    const int64_t at = g * tile.rows + row, at16 = 2 * g * tile.rows + row;
    const int sa = store_codes(tile.codes + at * 32, q[0], q[1]);
    const int sb = store_codes(tile.codes + at * 32 + 16, q[2], q[3]);
    tile.scales[at] = scale;
    tile.neg_sums32[at] = -(sa + sb);
    tile.sums32[at] = scale * static_cast<float>(sa + sb);
    tile.neg_sums16[at16] = -sa;
    tile.neg_sums16[at16 + tile.rows] = -sb;
    tile.sums16[at16] = scale * static_cast<float>(sa);
    tile.sums16[at16 + tile.rows] = scale * static_cast<float>(sb);
  }
}

inline __m256i broadcast_pair(const int16_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  return _mm256_set1_epi32(word);
}

inline __m256 load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Splits 8 rows of a line of codes into pairs of columns, widened to 16 bits.
template <int kBits>
[[gnu::always_inline]] inline void split_line(__m256i line, __m256i (&pairs)[16 / kBits]) {
  if constexpr (kBits == 4) {
    const __m256i low = _mm256_set1_epi16(15);
    pairs[0] = _mm256_and_si256(line, low);
    pairs[1] = _mm256_and_si256(_mm256_srli_epi16(line, 8), low);
    pairs[2] = _mm256_and_si256(_mm256_srli_epi16(line, 4), low);
    pairs[3] = _mm256_srli_epi16(line, 12);
  } else {
    pairs[0] = _mm256_and_si256(line, _mm256_set1_epi16(255));
    pairs[1] = _mm256_srli_epi16(line, 8);
  }
}

// Adds the products of one group of columns for kRows rows of the tile.
template <int kBits, int kGroup, int kRows>
[[gnu::always_inline]] inline void add_group(const uint8_t* codes, const int16_t* x,
                                             __m256i* dots) {
  constexpr int kPairs = 16 / kBits;
#pragma GCC unroll 8
  for (int line = 0; line < kGroup / (2 * kPairs); ++line) {
    __m256i pairs[kPairs];
    split_line<kBits>(_mm256_load_si256(reinterpret_cast<const __m256i*>(codes + line * 64)),
                      pairs);
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i) {
      const int16_t* at = x + 2 * (line * kPairs + i);
#pragma GCC unroll 4
      for (int n = 0; n < kRows; ++n) {
        const __m256i products = _mm256_madd_epi16(pairs[i], broadcast_pair(at + n * 32));
        dots[n] = _mm256_add_epi32(dots[n], products);
      }
    }
  }
}

// Rows first_row to first_row + kRows of the tile times rows 8 * half to 8 * half + 8 of the block.
template <int kBits, int kGroup, bool kMinimum, int kRows>
void multiply_half(const CodeBlocks& w, const uint8_t* data, int half, int64_t first_row,
                   const ActivationTile& tile, float (*totals_out)[8]) {
  const float* sums = kGroup == 32 ? tile.sums32 : tile.sums16;
  const int32_t* neg_sums = kGroup == 32 ? tile.neg_sums32 : tile.neg_sums16;
  const uint8_t* codes = data + half * 32;
  const uint8_t* scales = data;
  __m256 totals[kRows];
  for (int n = 0; n < kRows; ++n) totals[n] = _mm256_setzero_ps();
  for (int64_t g = 0; g < w.cols / kGroup; ++g) {
    if (kMinimum || g % 2 == 0) {
      scales = codes - half * 16;  // its half of 8 rows lies 16 bytes on, that of codes 32
      codes += 64;
    } else {
      scales += 32;
    }
    const int64_t x_group = g * kGroup / 32 * tile.rows + first_row;
    const int64_t sum_at = g * tile.rows + first_row;
    const int16_t* x = tile.codes + x_group * 32 + g * kGroup % 32;
    __m256i dots[kRows];
#pragma GCC unroll 4
    for (int n = 0; n < kRows; ++n) {
      dots[n] = kMinimum ? _mm256_setzero_si256()
                         : _mm256_set1_epi32(neg_sums[sum_at + n] * (1 << (kBits - 1)));
    }
    add_group<kBits, kGroup, kRows>(codes, x, dots);
    const __m256 scale = load_halves(scales);
#pragma GCC unroll 4
    for (int n = 0; n < kRows; ++n) {
      const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(tile.scales[x_group + n]));
      totals[n] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[n]), both, totals[n]);
      if constexpr (kMinimum) {
        totals[n] =
            _mm256_fmadd_ps(load_halves(scales + 32), _mm256_set1_ps(sums[sum_at + n]), totals[n]);
      }
    }
    codes += kGroup * 16 * kBits / 8;
  }
  for (int n = 0; n < kRows; ++n) {
    _mm256_storeu_ps(totals_out[n], _mm256_mul_ps(totals[n], _mm256_set1_ps(w.unit)));
  }
}

template <int kBits, int kGroup, bool kMinimum>
void multiply_shape(const CodeBlocks& w, int64_t block, const ActivationTile& tile,
                    const Output& out) {
  const uint8_t* data = w.data + block * w.block_bytes;
  for (int64_t first = 0; first < tile.rows; first += 4) {
    const int64_t rows = tile.rows - first < 4 ? tile.rows - first : 4;
    for (int half = 0; half < 2; ++half) {
      const int64_t left = w.rows - block * kBlockRows - half * 8;
      if (left <= 0) break;
      float totals[4][8];
      switch (rows) {
        case 1:
          multiply_half<kBits, kGroup, kMinimum, 1>(w, data, half, first, tile, totals);
          break;
        case 2:
          multiply_half<kBits, kGroup, kMinimum, 2>(w, data, half, first, tile, totals);
          break;
        case 3:
          multiply_half<kBits, kGroup, kMinimum, 3>(w, data, half, first, tile, totals);
          break;
        default:
          multiply_half<kBits, kGroup, kMinimum, 4>(w, data, half, first, tile, totals);
      }
      for (int64_t n = 0; n < rows; ++n) {
        std::memcpy(out.data + (first + n) * out.stride + block * kBlockRows + half * 8, totals[n],
                    static_cast<std::size_t>(left < 8 ? left : 8) * sizeof(float));
      }
    }
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

// kRows rows of x times 8 rows of a block, of which the first `count` are written.
template <int kRows>
void multiply_bf16_half(const uint16_t* data, int64_t cols, const float* x, int64_t count,
                        const Output& out) {
  const __m256i high_half = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  __m256 even[kRows], odd[kRows];
  for (int n = 0; n < kRows; ++n) even[n] = odd[n] = _mm256_setzero_ps();
  for (int64_t col = 0; col < cols; col += 2, data += 32) {
    const __m256i pairs = _mm256_load_si256(reinterpret_cast<const __m256i*>(data));
    const __m256 w0 = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    const __m256 w1 = _mm256_castsi256_ps(_mm256_and_si256(pairs, high_half));
#pragma GCC unroll 4
    for (int n = 0; n < kRows; ++n) {
      const float* at = x + n * cols + col;
      even[n] = _mm256_fmadd_ps(w0, _mm256_set1_ps(at[0]), even[n]);
      odd[n] = _mm256_fmadd_ps(w1, _mm256_set1_ps(at[1]), odd[n]);
    }
  }
  for (int n = 0; n < kRows; ++n) {
    float totals[8];
    _mm256_storeu_ps(totals, _mm256_add_ps(even[n], odd[n]));
    std::memcpy(out.data + n * out.stride, totals, static_cast<std::size_t>(count) * sizeof(float));
  }
}

void multiply_bf16(const Bf16Blocks& w, int64_t block, const float* x, int64_t n,
                   const Output& out) {
  const uint16_t* data = w.data + block * kBlockRows * w.cols;
  for (int64_t first = 0; first < n; first += 4) {
    for (int half = 0; half < 2; ++half) {
      const int64_t left = w.rows - block * kBlockRows - half * 8;
      if (left <= 0) break;
      const int64_t count = left < 8 ? left : 8;
      const uint16_t* from = data + half * 16;
      const float* rows = x + first * w.cols;
      const Output to{out.data + first * out.stride + block * kBlockRows + half * 8, out.stride};
      switch (n - first) {
        case 1:
          multiply_bf16_half<1>(from, w.cols, rows, count, to);
          break;
        case 2:
          multiply_bf16_half<2>(from, w.cols, rows, count, to);
          break;
        case 3:
          multiply_bf16_half<3>(from, w.cols, rows, count, to);
          break;
        default:
          multiply_bf16_half<4>(from, w.cols, rows, count, to);
      }
    }
  }
}

}  // namespace

const GemmKernels& avx2_gemm_kernels() {
  static constexpr GemmKernels kKernels = {quantise, multiply_codes, multiply_bf16};
  return kKernels;
}

}  // namespace coppice::ops

#pragma GCC pop_options
#else

namespace coppice::ops {
const GemmKernels& avx2_gemm_kernels() { return portable_gemm_kernels(); }
}  // namespace coppice::ops

#endif
