#include <gtest/gtest.h>
#include <torch/torch.h>

#include "coppice/attention/dense_backend.h"
#include "coppice/loader/gate_checkpoint.h"
#include "coppice/models/load.h"
#include "coppice/models/registry.h"

namespace coppice {
namespace {

ModelArgs small_args() {
  ModelArgs args;
  args.model_type = "llama";
  args.hidden_size = 64;
  args.intermediate_size = 96;
  args.num_hidden_layers = 2;
  args.num_attention_heads = 4;
  args.num_key_value_heads = 2;
  args.head_dim = 16;
  args.vocab_size = 50;
  args.max_position_embeddings = 8192;
  return args;
}

std::shared_ptr<Model> random_model() {
  const torch::NoGradGuard no_gradient;
  torch::manual_seed(4);
  const std::shared_ptr<Model> model = make_model(small_args());
  for (auto& item : model->named_parameters()) {
    const bool norm = item.key().find("norm") != std::string::npos;
    item.value().normal_(norm ? 1.0 : 0.0, norm ? 0.1 : 0.2);
  }
  return model;
}

// Angles in 16 bits would be off by up to 16 turns at position 5,000.
TEST(Bfloat16Test, Bfloat16KeepsPositionsFarOutApart) {
  const torch::NoGradGuard no_gradient;
  Batch batch;
  batch.token_ids = torch::arange(40, torch::kLong);
  batch.positions = torch::arange(5000, 5040, torch::kLong);
  batch.sequence_ids = {0};
  batch.cu_seqlens = {0, 40};
  DenseBackend dense;
  const std::shared_ptr<Model> model = random_model();
  const at::Tensor exact = model->forward(batch, dense);
  model->to(at::kBFloat16);
  const at::Tensor rounded = model->forward(batch, dense);
  EXPECT_EQ(rounded.scalar_type(), at::kBFloat16);
  const double worst = (rounded.to(at::kFloat) - exact).norm().item<double>();
  EXPECT_LT(worst, 0.04 * exact.norm().item<double>());
}

// Gates stay float32 under a bfloat16 model, and their result is float32.
TEST(Bfloat16Test, GatesKeepTheirTypeUnderBfloat16Activations) {
  const ModelArgs args = small_args();
  const std::shared_ptr<Model> model = random_model();
  model->to(at::kBFloat16);
  GateWeights gate;
  gate.spec = {.variant = "local",
               .hidden_layers = 1,
               .width = 8,
               .layers = args.num_hidden_layers,
               .kv_heads = args.num_key_value_heads,
               .hidden_size = args.hidden_size,
               .base_model = {},
               .base_sha256 = {}};
  for (int64_t i = 0; i < args.num_hidden_layers; ++i)
    gate.layers.push_back({.w1 = torch::randn({8, args.hidden_size}),
                           .c1 = torch::zeros({8}),
                           .w2 = {},
                           .c2 = {},
                           .head = torch::randn({2, 8}),
                           .bias = torch::full({2}, 8.0)});
  attach_gate(*model, gate);
  struct Looking final : AttentionBackend {
    at::Tensor forward(const AttentionInput& input, const Batch& batch) override {
      EXPECT_EQ(input.q.scalar_type(), at::kBFloat16);
      EXPECT_EQ(input.log_beta.scalar_type(), at::kFloat);
      return inner.forward(input, batch);
    }
    DenseBackend inner;
  } backend;
  Batch batch;
  batch.token_ids = torch::arange(6, torch::kLong);
  batch.positions = torch::arange(6, torch::kLong);
  batch.sequence_ids = {0};
  batch.cu_seqlens = {0, 6};
  model->forward(batch, backend);
}

}  // namespace
}  // namespace coppice
