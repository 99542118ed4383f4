#include "coppice/attention/cut_backend.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "coppice/attention/backend_testing.h"
#include "coppice/attention/dense_backend.h"
#include "coppice/core/error.h"
#include "coppice/ops/retention_attention.h"

namespace coppice {
namespace {

using namespace testing;  // NOLINT: helpers of these tests

TEST(CutBackend, tokens_that_never_fade_are_left_alone) {
  const AttentionInput input = random_input(1, 12);
  const Batch batch = two_documents();
  const at::Tensor pressure = torch::full({12}, 2.0, torch::kDouble);
  at::Tensor fades = torch::ones({12, 1}, torch::kDouble);
  fades[0] = fades[5] = fades[6] = 0.0;
  CutBackend backend(pressure, fades, 8);
  const at::Tensor got = backend.forward(input, batch);
  EXPECT_TRUE(
      torch::equal(got, ops::cut_attention(input.q, input.k, input.v, input.log_beta * fades,
                                           pressure, batch.cu_seqlens, input.scale, 8)));
  CutBackend all(pressure, torch::zeros({12, 1}, torch::kDouble), 8);
  DenseBackend dense;
  EXPECT_LE((all.forward(input, batch) - dense.forward(input, batch)).abs().max().item<double>(),
            1e-12);
  EXPECT_GT((got - dense.forward(input, batch)).abs().max().item<double>(), 1e-3);
}

TEST(CutBackend, refuses_layers_that_it_cannot_serve) {
  CutBackend backend(torch::zeros({12}), torch::ones({12, 1}), 8);
  AttentionInput input = random_input(1, 12);
  input.window = 4;
  EXPECT_THROW(backend.forward(input, two_documents()), Error);
  input.window = 0;
  input.log_beta = at::Tensor();
  EXPECT_THROW(backend.forward(input, two_documents()), Error);
}

}  // namespace
}  // namespace coppice
