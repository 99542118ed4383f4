#include "coppice/ops/capacity_lanes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "coppice/ops/cpu_features.h"

namespace coppice::ops {
namespace {

// Functions here take vectors by reference alone: how they are passed by value depends on the
// instruction set.
template <typename T>
struct LanesOf;
template <>
struct LanesOf<float> {
  using Type [[gnu::vector_size(64)]] = float;
};
template <>
struct LanesOf<double> {
  using Type [[gnu::vector_size(64)]] = double;
};
template <>
struct LanesOf<int32_t> {
  using Type [[gnu::vector_size(64)]] = int32_t;
};
template <typename T>
using Lanes = typename LanesOf<T>::Type;

constexpr int kKeys = 8;  // worked on side by side, in registers

// Terms below e^-limit are left out.
template <typename T>
constexpr T kLimit = sizeof(T) == 4 ? T(20) : T(40);

template <typename T>
[[gnu::always_inline]] inline void load(const T* from, Lanes<T>& to) {
  std::memcpy(&to, from, sizeof(to));
}
template <typename T>
[[gnu::always_inline]] inline void store(T* to, const Lanes<T>& from) {
  std::memcpy(to, &from, sizeof(from));
}

// x = e^x for x <= 0; below -87 (-700) as if there.
[[gnu::always_inline]] inline void exp_in_place(Lanes<float>& x) {
  const Lanes<float> least = Lanes<float>{} - 87.0F;
  x = x < least ? least : x;
  constexpr float kRound = 12582912.0F;  // 1.5 x 2^23: adding it rounds to a whole number
  const Lanes<float> n = (x * 1.44269504F + kRound) - kRound;
  const Lanes<float> r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  Lanes<float> p = r * (1.0F / 720.0F) + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const auto bits = (__builtin_convertvector(n, Lanes<int32_t>) + 127) << 23;
  Lanes<float> power;
  std::memcpy(&power, &bits, sizeof(power));
  x = p * power;
}
[[gnu::always_inline]] inline void exp_in_place(Lanes<double>& x) {
  for (int64_t i = 0; i < kCapacityLanes<double>; ++i) x[i] = std::exp(std::max(x[i], -700.0));
}

// power[k] = beta^(age - k) for kKeys keys, the first of which has that age; false when all of them
// are below the limit.
template <typename T>
[[gnu::always_inline]] inline bool start_powers(const T* log_beta, int64_t age, Lanes<T>* power) {
  constexpr int64_t kLanes = kCapacityLanes<T>;
  Lanes<T> newest = Lanes<T>{} - 2 * kLimit<T>;
  for (int k = 0; k < kKeys; ++k) {
    load(log_beta + k * kLanes, power[k]);
    power[k] = power[k] * static_cast<T>(age - k);
    newest = power[k] > newest ? power[k] : newest;
  }
  bool alive = false;
  for (int64_t lane = 0; lane < kLanes; ++lane) alive |= newest[lane] >= -kLimit<T>;
  if (!alive) return false;
  for (int k = 0; k < kKeys; ++k) exp_in_place(power[k]);
  return true;
}

template <typename T>
[[gnu::always_inline]] inline void occupancy(const CapacityRows<T>& rows, int64_t begin, T* held) {
  constexpr int64_t kLanes = kCapacityLanes<T>;
  const int64_t count = std::min(kCapacityBlock, rows.tokens - begin);
  for (int64_t i = 0; i < begin; i += kKeys) {
    Lanes<T> power[kKeys], decay[kKeys], sum;
    if (!start_powers(rows.log_beta + i * kLanes, begin - i, power)) continue;
    for (int k = 0; k < kKeys; ++k) load(rows.decay + (i + k) * kLanes, decay[k]);
    for (int64_t t = 0; t < count; ++t) {
      load(held + t * kLanes, sum);
      sum += ((power[0] + power[1]) + (power[2] + power[3])) +
             ((power[4] + power[5]) + (power[6] + power[7]));
      store(held + t * kLanes, sum);
      for (int k = 0; k < kKeys; ++k) power[k] += power[k] * decay[k];
    }
  }
  for (int64_t i = 0; i < count; ++i) {  // keys of the block itself
    Lanes<T> decay, sum, power = Lanes<T>{} + 1;
    load(rows.decay + (begin + i) * kLanes, decay);
    for (int64_t t = i; t < count; ++t) {
      load(held + t * kLanes, sum);
      sum += power;
      store(held + t * kLanes, sum);
      power += power * decay;
    }
  }
}

// The polynomial sum over j of weight[j] beta^j and its derivative, by Horner's rule, for n keys.
template <typename T, int n>
[[gnu::always_inline]] inline void polynomial(const T* weight, int64_t stride, int64_t count,
                                              const Lanes<T>* beta, Lanes<T>* value,
                                              Lanes<T>* derivative) {
  for (int k = 0; k < n; ++k) value[k] = derivative[k] = Lanes<T>{};
  for (int64_t j = count - 1; j >= 0; --j) {
    Lanes<T> coefficient;
    if (stride == 1) {
      coefficient = Lanes<T>{} + weight[j];
    } else {
      load(weight + j * stride, coefficient);
    }
    for (int k = 0; k < n; ++k) {
      derivative[k] = derivative[k] * beta[k] + value[k];
      value[k] = value[k] * beta[k] + coefficient;
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void slope(const CapacityRows<T>& rows, int64_t begin,
                                         const T* weight, int64_t stride, T* slope) {
  constexpr int64_t kLanes = kCapacityLanes<T>;
  const int64_t end = std::min(begin + kCapacityBlock, rows.tokens);
  Lanes<T> beta[kKeys], value[kKeys], derivative[kKeys], power[kKeys], sum;
  for (int64_t i = begin; i < end; ++i) {  // positions of the block itself
    load(rows.decay + i * kLanes, beta[0]);
    beta[0] += 1;
    polynomial<T, 1>(weight + i * stride, stride, end - i, beta, value, derivative);
    store(slope + (i - begin) * kLanes, beta[0] * derivative[0]);
  }
  if (end == rows.tokens) return;  // so the block is full, and keys come in whole groups
  for (int64_t i = begin; i < end; i += kKeys) {
    for (int k = 0; k < kKeys; ++k) {
      load(rows.decay + (i + k) * kLanes, beta[k]);
      beta[k] += 1;
    }
    for (int64_t t = end; t < rows.tokens; t += kCapacityBlock) {
      if (!start_powers(rows.log_beta + i * kLanes, t - i, power)) break;
      polynomial<T, kKeys>(weight + t * stride, stride, std::min(kCapacityBlock, rows.tokens - t),
                           beta, value, derivative);
      for (int k = 0; k < kKeys; ++k) {
        load(slope + (i + k - begin) * kLanes, sum);
        sum += power[k] * (value[k] * static_cast<T>(t - i - k) + beta[k] * derivative[k]);
        store(slope + (i + k - begin) * kLanes, sum);
      }
    }
  }
}

// Both loops, compiled for one instruction set.
#define COPPICE_CAPACITY_KERNELS(name, attribute)                                             \
  template <typename T>                                                                       \
  struct name {                                                                               \
    attribute static void occupancy_loop(const CapacityRows<T>& rows, int64_t begin, T* to) { \
      occupancy(rows, begin, to);                                                             \
    }                                                                                         \
    attribute static void slope_loop(const CapacityRows<T>& rows, int64_t begin, const T* w,  \
                                     int64_t stride, T* to) {                                 \
      slope(rows, begin, w, stride, to);                                                      \
    }                                                                                         \
    static constexpr CapacityKernels<T> kernels = {occupancy_loop, slope_loop};               \
  };

COPPICE_CAPACITY_KERNELS(Portable, )
#if defined(__x86_64__)
COPPICE_CAPACITY_KERNELS(Avx2, [[gnu::target("avx2,fma")]])
COPPICE_CAPACITY_KERNELS(Avx512, [[gnu::target("avx512f,avx512vl,avx512bw,avx512dq")]])
#endif
#undef COPPICE_CAPACITY_KERNELS

}  // namespace

template <typename T>
const CapacityKernels<T>& capacity_kernels() {
#if defined(__x86_64__)
  if (cpu_level() >= CpuLevel::kAvx512) return Avx512<T>::kernels;
  if (cpu_level() >= CpuLevel::kAvx2) return Avx2<T>::kernels;
#endif
  return Portable<T>::kernels;
}

template const CapacityKernels<float>& capacity_kernels<float>();
template const CapacityKernels<double>& capacity_kernels<double>();

}  // namespace coppice::ops
