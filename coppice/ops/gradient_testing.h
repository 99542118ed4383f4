// For tests: gradients against finite differences.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coppice::ops {

// fn() reads `leaves` (float64, contiguous) and gives a scalar. Checks d fn / d leaf of every
// element against the central difference, to `tolerance` absolute and relative.
template <typename Fn>
void expect_gradients(const std::vector<at::Tensor>& leaves, const Fn& fn,
                      double tolerance = 1e-7) {
  constexpr double kStep = 1e-5;
  for (const at::Tensor& leaf : leaves) {
    leaf.mutable_grad() = at::Tensor();
    leaf.set_requires_grad(true);
  }
  at::Tensor value = fn();
  value.backward();
  const c10::NoGradGuard no_gradient;
  for (std::size_t l = 0; l < leaves.size(); ++l) {
    const at::Tensor flat = leaves[l].view({-1});
    const at::Tensor given = leaves[l].grad().contiguous().view({-1});
    for (int64_t i = 0; i < flat.numel(); ++i) {
      double* const x = flat.data_ptr<double>() + i;
      const double before = *x;
      *x = before + kStep;
      const double up = fn().template item<double>();
      *x = before - kStep;
      const double down = fn().template item<double>();
      *x = before;
      const double wanted = (up - down) / (2 * kStep);
      EXPECT_NEAR(given[i].item<double>(), wanted, tolerance * (1.0 + std::abs(wanted)))
          << "leaf " << l << ", element " << i;
    }
  }
}

// fast(leaves) and reference(leaves) agree, and so do their gradients for the same random upstream
// gradient: largest difference over largest value. Float32 leaves are compared with the reference
// in float64, bfloat16 ones (8 bits) likewise. Every leaf gets a gradient.
template <typename Fast, typename Reference>
void expect_same_gradients(const std::vector<at::Tensor>& leaves, const Fast& fast,
                           const Reference& reference, double tolerance) {
  const auto copies = [&](bool wide) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& x : leaves)
      result.push_back(
          x.detach().to(wide ? at::kDouble : x.scalar_type(), false, true).set_requires_grad(true));
    return result;
  };
  const std::vector<at::Tensor> narrow = copies(false), wide = copies(true);
  const at::Tensor got = fast(narrow), wanted = reference(wide);
  ASSERT_EQ(got.scalar_type(), leaves[0].scalar_type());
  const at::Tensor upstream = at::randn_like(got);
  got.backward(upstream);
  wanted.backward(upstream.to(at::kDouble));
  const auto expect_near = [&](const at::Tensor& a, const at::Tensor& b, const std::string& what) {
    EXPECT_LE((a.detach().to(at::kDouble) - b.detach()).abs().max().item<double>(),
              tolerance * b.detach().abs().max().item<double>())
        << what;
  };
  expect_near(got, wanted, "result");
  for (std::size_t l = 0; l < leaves.size(); ++l)
    expect_near(narrow[l].grad(), wide[l].grad(), "gradient of leaf " + std::to_string(l));
}

}  // namespace coppice::ops
