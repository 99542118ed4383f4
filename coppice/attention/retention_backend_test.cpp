#include "coppice/attention/retention_backend.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "coppice/attention/backend_testing.h"
#include "coppice/attention/dense_backend.h"
#include "coppice/core/error.h"
#include "coppice/ops/retention_attention.h"

namespace coppice {
namespace {

using namespace testing;  // NOLINT: helpers of these tests

TEST(RetentionBackend, equals_the_kernel_and_keeps_log_beta_of_each_layer) {
  RetentionBackend backend;
  const Batch batch = two_documents();
  std::vector<AttentionInput> inputs;
  for (int64_t layer : {1, 0, 2}) {
    inputs.push_back(random_input(layer, 12));
    inputs.back().log_beta.set_requires_grad(true);
    const AttentionInput& in = inputs.back();
    EXPECT_TRUE(torch::equal(
        backend.forward(in, batch),
        ops::retention_attention(in.q, in.k, in.v, in.log_beta, batch.cu_seqlens, in.scale)));
  }
  ASSERT_EQ(backend.log_betas().size(), 3u);
  for (const AttentionInput& in : inputs)
    EXPECT_TRUE(backend.log_betas()[static_cast<std::size_t>(in.layer)].is_same(in.log_beta));
  torch::stack(backend.log_betas(), 1).sum().backward();
  EXPECT_EQ(inputs[1].log_beta.grad().sum().item<double>(), 24.0);
  backend.clear();
  EXPECT_TRUE(backend.log_betas().empty());
}

TEST(RetentionBackend, without_decay_is_the_dense_backend) {
  RetentionBackend backend;
  DenseBackend dense;
  AttentionInput input = random_input(0, 12);
  input.log_beta.zero_();
  const Batch batch = two_documents();
  EXPECT_LE(
      (backend.forward(input, batch) - dense.forward(input, batch)).abs().max().item<double>(),
      1e-12);
}

TEST(RetentionBackend, refuses_layers_without_gates_and_windows) {
  RetentionBackend backend;
  const Batch batch = two_documents();
  AttentionInput input = random_input(3, 12);
  input.window = 4;
  EXPECT_THROW(backend.forward(input, batch), Error);
  input.window = 0;
  input.log_beta = at::Tensor();
  try {
    backend.forward(input, batch);
    FAIL() << "a layer without a gate was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("layer 3"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace coppice
