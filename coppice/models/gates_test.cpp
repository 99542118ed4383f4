#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <set>

#include "coppice/core/error.h"
#include "coppice/loader/gate_checkpoint.h"
#include "coppice/models/load.h"
#include "coppice/models/registry.h"
#include "tests/support/rival_gates.h"

namespace coppice {
namespace {

constexpr int64_t kLayers = 3, kHidden = 32, kHeads = 2, kWidth = 5;

std::shared_ptr<Model> random_model(const std::string& type) {
  const Json config = {{"model_type", type},       {"hidden_size", kHidden},
                       {"intermediate_size", 48},  {"num_hidden_layers", kLayers},
                       {"num_attention_heads", 4}, {"num_key_value_heads", kHeads},
                       {"vocab_size", 40},         {"max_position_embeddings", 512}};
  const auto model = make_model(ModelArgs::from_config(config));
  torch::NoGradGuard no_gradient;
  for (auto& parameter : model->parameters()) parameter.copy_(torch::randn_like(parameter) * 0.3);
  return model;
}

GateWeights random_gate(const std::string& variant, int64_t hidden_layers) {
  const bool shared = variant == "shared";
  GateWeights gate;
  gate.spec.variant = variant;
  gate.spec.hidden_layers = hidden_layers;
  gate.spec.width = kWidth;
  gate.spec.layers = kLayers;
  gate.spec.kv_heads = kHeads;
  gate.spec.hidden_size = kHidden;
  const int64_t u_size = shared ? kHeads * kWidth : kWidth;
  const at::Tensor head = shared ? torch::randn({kWidth}) : torch::randn({kHeads, kWidth});
  const at::Tensor bias = torch::randn({shared ? 1 : kHeads});
  for (int64_t l = 0; l < kLayers; ++l) {
    GateLayer layer;
    layer.w1 = torch::randn({hidden_layers == 1 ? u_size : kWidth, kHidden}) * 0.3;
    layer.c1 = torch::randn({layer.w1.size(0)});
    if (hidden_layers == 2) {
      layer.w2 = torch::randn({u_size, kWidth});
      layer.c2 = torch::randn({u_size});
    }
    layer.head = variant == "local" ? torch::randn({kHeads, kWidth}) : head;
    layer.bias = shared ? bias : torch::randn({kHeads});
    gate.layers.push_back(layer);
  }
  return gate;
}

// Passes values through and keeps what each layer's gate said.
struct GateProbe final : AttentionBackend {
  std::vector<at::Tensor> log_beta;
  at::Tensor forward(const AttentionInput& input, const Batch&) override {
    log_beta.push_back(input.log_beta);
    return input.q;
  }
};

Batch small_batch() {
  Batch batch;
  batch.token_ids = torch::arange(6, torch::kLong);
  batch.positions = torch::arange(6, torch::kLong);
  batch.sequence_ids = {0};
  batch.cu_seqlens = {0, 6};
  return batch;
}

TEST(Gates, every_variant_reaches_the_backend_of_every_architecture) {
  const torch::NoGradGuard no_gradient;
  for (const std::string& type : supported_architectures())
    for (const char* variant : {"shared", "head-row", "local"})
      for (int64_t hidden_layers : {1, 2}) {
        const auto model = random_model(type);
        GateProbe without;
        const at::Tensor before = model->forward(small_batch(), without);
        EXPECT_FALSE(has_gate(*model));
        EXPECT_FALSE(without.log_beta.front().defined());
        attach_gate(*model, random_gate(variant, hidden_layers));
        EXPECT_TRUE(has_gate(*model));
        GateProbe with;
        const at::Tensor after = model->forward(small_batch(), with);
        EXPECT_TRUE(at::equal(before, after)) << "a gate changes no hidden state";
        ASSERT_EQ(with.log_beta.size(), static_cast<std::size_t>(kLayers));
        for (const at::Tensor& log_beta : with.log_beta) {
          EXPECT_EQ(log_beta.sizes(), (std::vector<int64_t>{6, kHeads}));
          EXPECT_EQ(log_beta.scalar_type(), torch::kFloat);
          EXPECT_LE(log_beta.max().item<float>(), 0.0f);
        }
        EXPECT_FALSE(at::equal(with.log_beta[0], with.log_beta[1]));
      }
}

TEST(Gates, hold_the_loaded_numbers_and_the_bytes_told) {
  for (const char* variant : {"shared", "head-row", "local"})
    for (int64_t hidden_layers : {1, 2}) {
      const auto model = random_model("llama");
      const GateWeights gate = random_gate(variant, hidden_layers);
      attach_gate(*model, gate);
      std::set<const void*> seen;
      int64_t bytes = 0;
      const auto parameters = model->named_parameters();
      for (const auto& item : parameters)
        if (item.key().find("retention_gate") != std::string::npos &&
            seen.insert(item.value().data_ptr()).second)
          bytes += item.value().numel() * 4;
      EXPECT_EQ(gate_bytes(gate, /*packed=*/false), bytes) << variant << " " << hidden_layers;
      const std::string prefix = "model.layers.2.self_attn.retention_gate.";
      const std::string head = "linear" + std::to_string(hidden_layers + 1) + ".weight";
      EXPECT_TRUE(at::equal(parameters[prefix + "linear1.weight"], gate.layers[2].w1));
      EXPECT_TRUE(at::equal(parameters[prefix + head].flatten(), gate.layers[2].head.flatten()));
      EXPECT_TRUE(at::equal(parameters[prefix + "bias"], gate.layers[2].bias));
    }
}

TEST(Gates, other_kinds_reach_the_backend_and_hold_the_bytes_told) {
  const torch::NoGradGuard no_gradient;
  for (const GateSpec& spec : testing::rival_specs({kLayers, kHeads, kHidden, 4})) {
    const GateWeights gate = testing::random_rival_gate(spec);
    const auto model = random_model("llama");
    GateProbe without, with;
    const at::Tensor before = model->forward(small_batch(), without);
    attach_gate(*model, gate);
    EXPECT_EQ(model->gate_kind(), spec.kind);
    EXPECT_TRUE(at::equal(before, model->forward(small_batch(), with)));
    ASSERT_EQ(with.log_beta.size(), static_cast<std::size_t>(kLayers));
    for (const at::Tensor& score : with.log_beta) {
      EXPECT_EQ(score.sizes(), (std::vector<int64_t>{6, kHeads}));
      EXPECT_EQ(score.scalar_type(), torch::kFloat);
    }
    EXPECT_FALSE(at::equal(with.log_beta[0], with.log_beta[1]));
    int64_t bytes = 0;
    for (const auto& item : model->named_parameters())
      if (item.key().find("retention_gate") != std::string::npos) bytes += item.value().numel() * 4;
    EXPECT_EQ(gate_bytes(gate, /*packed=*/false), bytes) << spec.kind;
  }
}

TEST(Gates, L22_a_gate_that_does_not_fit_is_refused) {
  const GateWeights sound = random_gate("head-row", 2);
  std::vector<GateWeights> unfit(5, sound);
  unfit[0].spec.layers = kLayers - 1;
  unfit[0].layers.pop_back();
  unfit[1].spec.kv_heads = 3;
  for (GateLayer& layer : unfit[1].layers) {
    layer.head = torch::randn({3, kWidth});
    layer.bias = torch::randn({3});
  }
  unfit[2].spec.hidden_size = 16;
  for (GateLayer& layer : unfit[2].layers) layer.w1 = torch::randn({kWidth, 16});
  unfit[3].layers[1].c2 = torch::full({kWidth}, std::numeric_limits<float>::quiet_NaN());
  unfit[4].layers.clear();
  for (const GateWeights& gate : unfit) {
    const auto model = random_model("llama");
    EXPECT_THROW(attach_gate(*model, gate), Error);
    EXPECT_FALSE(has_gate(*model));
  }
  const auto model = random_model("llama");
  attach_gate(*model, sound);
  EXPECT_THROW(attach_gate(*model, sound), Error);
}

}  // namespace
}  // namespace coppice
