// Loops over bfloat16 or float32 numbers, compiled for every level of the processor and spread over
// threads. For operations that record a gradient, and for models in bfloat16.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "coppice/ops/cpu_features.h"
#include "coppice/ops/fast_path.h"
#include "coppice/ops/packed_float.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {

// As stored: bfloat16 is its bits.
using BrainBits = uint16_t;

[[gnu::always_inline]] inline float widen(float x) { return x; }
[[gnu::always_inline]] inline float widen(BrainBits x) { return bf16_to_float(x); }

template <typename T>
[[gnu::always_inline]] inline T narrow(float x);
template <>
[[gnu::always_inline]] inline float narrow<float>(float x) {
  return x;
}
template <>
[[gnu::always_inline]] inline BrainBits narrow<BrainBits>(float x) {
  return float_to_bf16(x);
}

// Contiguous bfloat16 or float32 on the CPU, with or without a gradient.
inline bool has_row_loops(const at::Tensor& x) {
  return x.device().is_cpu() && x.is_contiguous() &&
         (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat);
}

namespace detail {
template <typename Body>
void run_portable(const Body& body, int64_t begin, int64_t end) {
  body(begin, end);
}
#if defined(__x86_64__)
template <typename Body>
[[gnu::target("avx2,fma")]] void run_avx2(const Body& body, int64_t begin, int64_t end) {
  body(begin, end);
}
template <typename Body>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")]] void run_avx512(
    const Body& body, int64_t begin, int64_t end) {
  body(begin, end);
}
#endif
}  // namespace detail

// body(begin, end) over `rows` rows of `values` numbers each. The body must be a lambda marked
// always_inline, and inline what it calls, so that it is compiled for each level.
template <typename Body>
void for_rows(int64_t rows, int64_t values, const Body& body) {
  auto run = detail::run_portable<Body>;
#if defined(__x86_64__)
  if (cpu_level() >= CpuLevel::kAvx2) run = detail::run_avx2<Body>;
  if (cpu_level() >= CpuLevel::kAvx512) run = detail::run_avx512<Body>;
#endif
  parallel_for(0, rows, rows_per_piece(values),
               [&](int64_t begin, int64_t end) { run(body, begin, end); });
}

// fn(BrainBits{}) or fn(float{}), as x is stored.
template <typename Fn>
void with_element(const at::Tensor& x, const Fn& fn) {
  if (x.scalar_type() == at::kBFloat16) {
    fn(BrainBits{});
  } else {
    fn(float{});
  }
}

template <typename T>
const T* read(const at::Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}
template <typename T>
T* write(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

}  // namespace coppice::ops
