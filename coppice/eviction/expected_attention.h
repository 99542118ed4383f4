// ExpectedAttention (arXiv:2510.00636): the attention that future queries are expected to pay, from
// the mean and covariance of the queries so far. Query and key sizes: G heads of a group, D, L
// keys.
//
//   mu' = R mu,  Sigma' = R Sigma R^T      R: rotation averaged over the next n_future positions
//   z[j] = k[j] . mu' + k[j]^T Sigma' k[j] / 2      with 1 / sqrt(D) inside the queries
//   s[j] = (mean over the group of softmax(z)[j] + epsilon) x |v[j]|
//
// over all keys but the sinks, which are safe. Queries of sinks do not count.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace coppice {

// R, of positions first .. first + count - 1: inv_freq [D/2] -> [D, D] float64
at::Tensor mean_rotation(const at::Tensor& inv_freq, int64_t first, int64_t count);

// mean [G, D] and covariance [G, D, D] (undefined: none) of rotated queries times the scale,
// keys [L, D]. -> softmax over the keys, [G, L]
at::Tensor expected_probabilities(const at::Tensor& mean, const at::Tensor& covariance,
                                  const at::Tensor& keys);

// Queries as they were before their rotation by angles `turns` [T, D/2]. q [T, H, D] -> the same.
at::Tensor unrotate(const at::Tensor& q, const at::Tensor& turns);

}  // namespace coppice
