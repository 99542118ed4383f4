// For tests of attention whose keys fade: cases, random inputs, and how far two results are apart.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace coppice::ops::testing {

struct Case {
  std::vector<int64_t> cu_seqlens;
  int64_t heads, kv_heads, dims;
};

struct Inputs {
  at::Tensor q, k, v, log_beta, weight;
};

// Lifetimes from a fraction of a token to thousands.
inline Inputs random_inputs(const Case& c, at::ScalarType type) {
  const int64_t n = c.cu_seqlens.back();
  Inputs in;
  in.q = at::randn({n, c.heads, c.dims}, at::kDouble).to(type);
  in.k = at::randn({n, c.kv_heads, c.dims}, at::kDouble).to(type);
  in.v = at::randn({n, c.kv_heads, c.dims}, at::kDouble).to(type);
  const at::ScalarType fade = type == at::kDouble ? at::kDouble : at::kFloat;
  in.log_beta = -at::exp(at::rand({n, c.kv_heads}, at::kDouble) * 9.0 - 8.0).to(fade);
  in.weight = at::randn({n, c.heads, c.dims}, at::kDouble).to(type);
  return in;
}

struct Results {
  at::Tensor out, q, k, v, log_beta;
};

template <typename Fn>
Results run(const Inputs& in, const Case& c, const Fn& fn) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : {in.q, in.k, in.v, in.log_beta})
    leaves.push_back(x.detach().clone().set_requires_grad(true));
  const at::Tensor out =
      fn(leaves[0], leaves[1], leaves[2], leaves[3], c.cu_seqlens, 1.0 / std::sqrt(c.dims));
  out.backward(in.weight);
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad(), leaves[3].grad()};
}

// The largest difference over the largest value.
inline double distance(const at::Tensor& got, const at::Tensor& wanted) {
  const at::Tensor to = wanted.to(at::kDouble);
  return ((got.to(at::kDouble) - to).abs().max() / to.abs().max().clamp_min(1e-30)).item<double>();
}

inline void expect_near(const Results& got, const Results& wanted, double tolerance) {
  EXPECT_LE(distance(got.out, wanted.out), tolerance) << "out";
  EXPECT_LE(distance(got.q, wanted.q), tolerance) << "gradient of q";
  EXPECT_LE(distance(got.k, wanted.k), tolerance) << "gradient of k";
  EXPECT_LE(distance(got.v, wanted.v), tolerance) << "gradient of v";
  EXPECT_LE(distance(got.log_beta, wanted.log_beta), tolerance) << "gradient of log beta";
}

inline const Case kSmall[] = {
    {{0, 1, 4, 9}, 3, 1, 5}, {{0, 6}, 7, 1, 3}, {{0, 0, 5, 5, 7}, 6, 2, 4}};
inline const Case kRagged[] = {{{0, 1, 65, 65, 300}, 6, 2, 64},
                               {{0, 63, 200}, 7, 1, 7},
                               {{0, 700}, 3, 3, 128},
                               {{0, 64, 192, 321}, 9, 3, 80}};

}  // namespace coppice::ops::testing
