#include "coppice/attention/dense_backend.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "coppice/ops/attention_reference.h"

namespace coppice {
namespace {

AttentionInput random_input(int64_t tokens, int64_t heads, int64_t kv_heads, at::ScalarType dtype) {
  AttentionInput input;
  input.q = torch::randn({tokens, heads, 8}, dtype);
  input.k = torch::randn({tokens, kv_heads, 8}, dtype);
  input.v = torch::randn({tokens, kv_heads, 8}, dtype);
  input.scale = 0.4;
  return input;
}

Batch batch_of(std::vector<int64_t> offsets) {
  Batch batch;
  batch.cu_seqlens = std::move(offsets);
  for (std::size_t b = 0; b + 1 < batch.cu_seqlens.size(); ++b)
    batch.sequence_ids.push_back(static_cast<int64_t>(b));
  return batch;
}

at::Tensor reference(const AttentionInput& input, const Batch& batch) {
  std::vector<at::Tensor> parts;
  for (int64_t b = 0; b < batch.num_sequences(); ++b) {
    const int64_t begin = batch.cu_seqlens[b], end = batch.cu_seqlens[b + 1];
    parts.push_back(ops::attention_reference(
        input.q.slice(0, begin, end), input.k.slice(0, begin, end), input.v.slice(0, begin, end),
        input.scale, ops::causal_mask(end - begin, end - begin, input.window)));
  }
  return torch::cat(parts);
}

TEST(DenseBackend, equals_the_reference_per_sequence) {
  DenseBackend backend;
  for (auto dtype : {torch::kFloat, torch::kDouble})
    for (int64_t kv_heads : {1, 2, 4})
      for (int64_t window : {0, 1, 3, 300, 1000}) {
        AttentionInput input = random_input(620, 4, kv_heads, dtype);
        input.window = window;
        const Batch batch = batch_of({0, 1, 8, 620});
        const at::Tensor out = backend.forward(input, batch);
        EXPECT_EQ(out.sizes(), input.q.sizes());
        EXPECT_EQ(out.scalar_type(), dtype);
        EXPECT_LE((out - reference(input, batch)).abs().max().item<double>(),
                  dtype == torch::kDouble ? 1e-12 : 1e-5)
            << kv_heads << " KV heads, window " << window;
      }
}

TEST(DenseBackend, gradients_equal_finite_differences) {
  DenseBackend backend;
  for (int64_t window : {0, 2}) {
    AttentionInput input = random_input(6, 4, 2, torch::kDouble);
    input.window = window;
    const Batch batch = batch_of({0, 2, 6});
    const at::Tensor weight = torch::randn({6, 4, 8}, torch::kDouble);
    for (at::Tensor* leaf : {&input.q, &input.k, &input.v}) leaf->set_requires_grad(true);
    (backend.forward(input, batch) * weight).sum().backward();
    torch::NoGradGuard no_gradient;
    for (at::Tensor* leaf : {&input.q, &input.k, &input.v}) {
      const double step = 1e-6;
      at::Tensor value = (*leaf)[3][1][2];
      value += step;
      const double up = (backend.forward(input, batch) * weight).sum().item<double>();
      value -= 2 * step;
      const double down = (backend.forward(input, batch) * weight).sum().item<double>();
      value += step;
      EXPECT_NEAR(leaf->grad()[3][1][2].item<double>(), (up - down) / (2 * step), 1e-6);
    }
  }
}

}  // namespace
}  // namespace coppice
