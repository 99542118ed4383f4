// Paged attention in plain C++, for any machine.
#include <bit>
#include <cmath>

#include "coppice/ops/paged_attention_kernels.h"

namespace coppice::ops {
namespace {

struct Half16 {
  uint16_t bits;
};
struct Brain16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(Brain16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
inline float to_float(Half16 x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000U} << 16;
  const uint32_t magnitude = uint32_t{x.bits & 0x7FFFU} << 13;
  // Moves the exponent's bias from 15 to 127; exact for subnormal numbers too.
  float value = std::bit_cast<float>(magnitude) * 0x1p112F;
  if (magnitude >= 0x0F800000U) value = std::bit_cast<float>(magnitude | 0x7F800000U);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

struct Simd {
  struct Vec {
    float lane[16];
  };
  static constexpr int kScoreBlocks = 1;
  static constexpr int kValueVecs = 1;
  static constexpr int kTileQueries = 4;

  static Vec zero() { return {}; }
  static Vec broadcast(float x) {
    Vec v;
    for (float& lane : v.lane) lane = x;
    return v;
  }
  template <typename T>
  static Vec load(const T* p) {
    Vec v;
    for (int i = 0; i < 16; ++i) v.lane[i] = to_float(p[i]);
    return v;
  }
  template <typename T>
  static Vec load_part(const T* p, int n) {
    Vec v = {};
    for (int i = 0; i < n; ++i) v.lane[i] = to_float(p[i]);
    return v;
  }
  static void store(float* p, const Vec& v) {
    for (int i = 0; i < 16; ++i) p[i] = v.lane[i];
  }
  static Vec add(Vec a, const Vec& b) {
    for (int i = 0; i < 16; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  static Vec mul(Vec a, const Vec& b) {
    for (int i = 0; i < 16; ++i) a.lane[i] *= b.lane[i];
    return a;
  }
  static Vec fma(Vec a, const Vec& b, const Vec& c) {
    for (int i = 0; i < 16; ++i) a.lane[i] = a.lane[i] * b.lane[i] + c.lane[i];
    return a;
  }
  static Vec max(Vec a, const Vec& b) {
    for (int i = 0; i < 16; ++i) a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
  }
  static Vec exp2(Vec x) {
    for (float& lane : x.lane) lane = exp2_lane(lane);
    return x;
  }

 private:
  static float exp2_lane(float x) {
    if (x < -126.0F) return 0.0F;
    const float whole = std::nearbyint(x);
    const float r = x - whole;
    float p = kExp2[5];
    for (int i = 4; i >= 0; --i) p = p * r + kExp2[i];
    const int exponent = std::isnan(whole) ? 0 : static_cast<int>(whole);
    return (p * r + 1.0F) * std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
  }
};

}  // namespace
}  // namespace coppice::ops

#include "coppice/ops/paged_attention_inl.h"

namespace coppice::ops {
const PagedKernels& portable_paged_kernels() { return kKernels; }
}  // namespace coppice::ops
