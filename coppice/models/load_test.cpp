#include "coppice/models/load.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <span>

#include "coppice/core/error.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/loader/safetensors_file.h"
#include "coppice/models/registry.h"
#include "coppice/ops/attention_reference.h"
#include "tests/support/scratch_folder.h"

namespace coppice {
namespace {

Json config(const std::string& model_type) {
  return {{"model_type", model_type}, {"hidden_size", 32},
          {"intermediate_size", 48},  {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"vocab_size", 40},         {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},    {"max_position_embeddings", 512}};
}

std::shared_ptr<Model> random_model(const Json& config) {
  const auto model = make_model(ModelArgs::from_config(config));
  torch::manual_seed(7);
  torch::NoGradGuard no_gradient;
  for (auto& parameter : model->parameters()) parameter.copy_(torch::randn_like(parameter) * 0.2);
  return model;
}

std::vector<SafetensorsEntry> entries_of(const Model& model) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& tensor = item.value();
    entries.push_back({item.key(), "F32", tensor.sizes().vec(),
                       std::as_bytes(std::span(tensor.const_data_ptr<float>(),
                                               static_cast<std::size_t>(tensor.numel())))});
  }
  return entries;
}

// A Hugging Face folder of these weights.
void write_folder(const std::string& folder, const Json& config,
                  const std::vector<SafetensorsEntry>& entries) {
  write_safetensors(folder + "/model.safetensors", entries, {});
  std::ofstream(folder + "/config.json") << config.dump();
}

Batch batch_of(const std::vector<std::vector<int64_t>>& sequences) {
  Batch batch;
  batch.cu_seqlens = {0};
  std::vector<int64_t> ids, positions;
  for (const auto& sequence : sequences) {
    batch.sequence_ids.push_back(batch.num_sequences());
    for (std::size_t i = 0; i < sequence.size(); ++i) positions.push_back(static_cast<int64_t>(i));
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    batch.cu_seqlens.push_back(static_cast<int64_t>(ids.size()));
  }
  batch.token_ids = torch::tensor(ids, torch::kLong);
  batch.positions = torch::tensor(positions, torch::kLong);
  return batch;
}

// Causal attention per sequence, by definition.
struct ReferenceBackend final : AttentionBackend {
  at::Tensor forward(const AttentionInput& input, const Batch& batch) override {
    std::vector<at::Tensor> parts;
    for (int64_t b = 0; b < batch.num_sequences(); ++b) {
      const int64_t begin = batch.cu_seqlens[b], end = batch.cu_seqlens[b + 1];
      parts.push_back(ops::attention_reference(
          input.q.slice(0, begin, end), input.k.slice(0, begin, end), input.v.slice(0, begin, end),
          input.scale, ops::causal_mask(end - begin, end - begin, 0)));
    }
    return torch::cat(parts);
  }
};

at::Tensor run(Model& model, const Batch& batch) {
  torch::NoGradGuard no_gradient;
  ReferenceBackend backend;
  return model.logits(model.forward(batch, backend));
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(LoadModel, gives_the_saved_model_back) {
  for (const std::string& type : supported_architectures())
    for (bool tied : {false, true}) {
      const testing::ScratchFolder folder;
      Json wanted = config(type);
      wanted["tie_word_embeddings"] = tied;
      const auto model = random_model(wanted);
      write_folder(folder.path(), wanted, entries_of(*model));
      const Checkpoint checkpoint = Checkpoint::open(folder.path());
      const auto loaded = load_model(checkpoint, WeightMode::kFloat32);
      EXPECT_FALSE(loaded->is_training());
      const Batch batch = batch_of({{1, 2, 3}, {30, 31}});
      EXPECT_TRUE(at::equal(run(*loaded, batch), run(*model, batch))) << type;

      int64_t bytes = 0;
      for (const auto& parameter : loaded->parameters()) bytes += parameter.numel() * 4;
      EXPECT_EQ(weight_bytes(checkpoint, WeightMode::kFloat32), bytes);
    }
}

TEST(LoadModel, packed_weights_leave_no_dense_matrix) {
  const testing::ScratchFolder folder;
  const auto model = random_model(config("qwen3"));
  write_folder(folder.path(), config("qwen3"), entries_of(*model));
  const auto packed = load_model(Checkpoint::open(folder.path()), WeightMode::kPacked);
  for (const auto& item : packed->named_parameters())
    EXPECT_EQ(item.value().dim(), 1) << item.key();
  const Batch batch = batch_of({{1, 2, 3, 4, 5}});
  const at::Tensor wanted = run(*model, batch);
  EXPECT_LE((run(*packed, batch) - wanted).abs().max().item<double>(),
            0.05 * wanted.abs().max().item<double>());
}

TEST(LoadModel, L18_untied_without_a_head) {
  const testing::ScratchFolder folder;
  const Json untied = config("llama");
  const auto model = random_model(untied);
  auto entries = entries_of(*model);
  std::erase_if(entries, [](const auto& entry) { return entry.name == "lm_head.weight"; });
  write_folder(folder.path(), untied, entries);
  for (WeightMode mode : {WeightMode::kFloat32, WeightMode::kPacked}) {
    const std::string message = refusal([&] { load_model(Checkpoint::open(folder.path()), mode); });
    EXPECT_NE(message.find("lm_head.weight"), std::string::npos) << message;
  }
}

TEST(LoadModel, tied_with_a_stored_head_uses_the_embedding) {
  const testing::ScratchFolder folder;
  const auto untied = random_model(config("llama"));
  Json tied = config("llama");
  tied["tie_word_embeddings"] = true;
  write_folder(folder.path(), tied, entries_of(*untied));
  const auto loaded = load_model(Checkpoint::open(folder.path()), WeightMode::kFloat32);
  EXPECT_FALSE(loaded->named_parameters().contains("lm_head.weight"));
}

TEST(LoadModel, every_fault_is_in_one_message) {
  const testing::ScratchFolder folder;
  const auto model = random_model(config("llama"));
  auto entries = entries_of(*model);
  std::erase_if(entries, [](const auto& entry) { return entry.name == "model.norm.weight"; });
  const std::vector<float> few(32 * 31);
  for (auto& entry : entries)
    if (entry.name == "model.layers.1.mlp.up_proj.weight") {
      entry.shape = {32, 31};
      entry.bytes = std::as_bytes(std::span(few));
    }
  entries.push_back({"model.layers.0.self_attn.q_norm.weight",
                     "F32",
                     {32},
                     std::as_bytes(std::span(few).first(32))});
  write_folder(folder.path(), config("llama"), entries);
  const std::string message =
      refusal([&] { load_model(Checkpoint::open(folder.path()), WeightMode::kFloat32); });
  for (const char* name : {"model.norm.weight", "model.layers.1.mlp.up_proj.weight",
                           "model.layers.0.self_attn.q_norm.weight"})
    EXPECT_NE(message.find(name), std::string::npos) << message;
}

TEST(Model, batched_equals_alone_in_double) {
  for (const std::string& type : supported_architectures()) {
    const auto model = random_model(config(type));
    model->to(torch::kDouble);
    const std::vector<std::vector<int64_t>> sequences = {{5}, {1, 2, 3, 4}, {9, 9, 8}};
    const at::Tensor together = run(*model, batch_of(sequences));
    std::vector<at::Tensor> alone;
    for (const auto& sequence : sequences) alone.push_back(run(*model, batch_of({sequence})));
    EXPECT_LE((together - torch::cat(alone)).abs().max().item<double>(), 1e-12) << type;
  }
}

TEST(Model, embeddings_stand_for_ids_and_are_left_alone) {
  const auto model = random_model(config("llama"));
  Batch batch = batch_of({{3, 4, 5}});
  const at::Tensor wanted = run(*model, batch);
  const at::Tensor table = model->named_parameters()["model.embed_tokens.weight"];
  batch.embeddings = table.index_select(0, batch.token_ids);
  batch.token_ids = at::Tensor();
  const at::Tensor before = batch.embeddings.clone();
  EXPECT_TRUE(at::equal(run(*model, batch), wanted));
  EXPECT_TRUE(at::equal(batch.embeddings, before));
  batch.embeddings = torch::randn({3, 31});
  EXPECT_THROW(run(*model, batch), Error);
}

TEST(Model, refuses_ids_outside_the_vocabulary) {
  const auto model = random_model(config("llama"));
  EXPECT_THROW(run(*model, batch_of({{3, 40}})), Error);
  EXPECT_THROW(run(*model, batch_of({{-1}})), Error);
}

TEST(Model, recorded_gradients_change_no_result) {
  for (const std::string& type : supported_architectures()) {
    const auto model = random_model(config(type));
    const Batch batch = batch_of({{3, 4, 5}});
    const at::Tensor wanted = run(*model, batch);
    for (auto& parameter : model->parameters()) parameter.set_requires_grad(true);
    ReferenceBackend backend;
    const at::Tensor logits = model->logits(model->forward(batch, backend));
    EXPECT_LE((logits - wanted).abs().max().item<double>(), 1e-5) << type;
    logits.square().sum().backward();
    for (const auto& item : model->named_parameters())
      EXPECT_TRUE(item.value().grad().defined()) << item.key();
  }
}

}  // namespace
}  // namespace coppice
