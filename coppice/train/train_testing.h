// Helpers for tests of training: a vocabulary of bytes, tiny random models, files of documents.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/models/load.h"
#include "coppice/models/registry.h"
#include "coppice/train/gate_parameters.h"
#include "coppice/train/packer.h"
#include "coppice/train/trainer.h"
#include "tests/support/scratch_folder.h"

namespace coppice::testing {

inline constexpr int64_t kByteVocab = 261;

// Ids: <unk> <s> </s>, 256 bytes from id 3 on, then <|im_start|> and <|im_end|>.
inline Tokenizer byte_tokenizer() {
  GgufTokenizerFields fields;
  fields.model = "llama";
  fields.tokens = {"<unk>", "<s>", "</s>"};
  fields.types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    fields.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    fields.types.push_back(6);
  }
  for (const char* control : {"<|im_start|>", "<|im_end|>"}) {
    fields.tokens.push_back(control);
    fields.types.push_back(3);
  }
  fields.scores.assign(fields.tokens.size(), 0.0f);
  fields.bos_id = 1;
  fields.eos_id = 2;
  fields.eot_id = 260;
  fields.unk_id = 0;
  fields.add_bos = false;
  fields.add_space_prefix = false;
  return Tokenizer::from_gguf(fields);
}

inline ModelArgs tiny_args() {
  ModelArgs args;
  args.model_type = "llama";
  args.hidden_size = 32;
  args.intermediate_size = 48;
  args.num_hidden_layers = 3;
  args.num_attention_heads = 4;
  args.num_key_value_heads = 2;
  args.head_dim = 8;
  args.vocab_size = kByteVocab;
  args.max_position_embeddings = 256;
  args.tie_word_embeddings = true;
  return args;
}

inline GateSpec tiny_spec(const std::string& variant = "head-row") {
  const ModelArgs args = tiny_args();
  GateSpec spec;
  spec.variant = variant;
  spec.hidden_layers = 2;
  spec.width = 8;
  spec.layers = args.num_hidden_layers;
  spec.kv_heads = args.num_key_value_heads;
  spec.hidden_size = args.hidden_size;
  return spec;
}

// With this gate.
inline std::shared_ptr<Model> tiny_model_with(const GateWeights& gate,
                                              at::ScalarType dtype = at::kFloat) {
  const torch::NoGradGuard no_gradient;
  torch::set_num_threads(1);  // threads cost more than these sizes are worth
  torch::manual_seed(1);
  const std::shared_ptr<Model> model = make_model(tiny_args());
  for (auto& item : model->named_parameters()) {
    const bool norm = item.key().find("norm") != std::string::npos;
    item.value().normal_(norm ? 1.0 : 0.0, norm ? 0.1 : 0.3);
  }
  model->to(dtype);
  attach_gate(*model, gate);
  return model;
}

inline std::shared_ptr<Model> tiny_model(at::ScalarType dtype = at::kFloat,
                                         const std::string& variant = "head-row",
                                         double bias = 2.0) {
  return tiny_model_with(new_gate(tiny_spec(variant), bias, 5), dtype);
}

// Lines of plain documents with letters at random, 20 to `longest` characters each.
inline std::string random_documents(int64_t count, int64_t longest, uint64_t seed) {
  Rng rng(seed);
  std::string lines;
  for (int64_t i = 0; i < count; ++i) {
    std::string text;
    const uint64_t size = 20 + rng.below(static_cast<uint64_t>(longest - 19));
    for (uint64_t c = 0; c < size; ++c) text += static_cast<char>('a' + rng.below(8));
    lines +=
        fmt::format("{{\"id\": \"d{}\", \"source\": \"random\", \"text\": \"{}\"}}\n", i, text);
  }
  return lines;
}

inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

// Fails unless runs of 8 steps that stop after `stops` steps and go on end as one that never
// stopped. Each run trains a new model of `make_model` by an objective that `make_objective` makes
// of it.
template <typename MakeModel, typename MakeObjective>
void expect_resumed_equals_unbroken(int64_t longest, const std::vector<int64_t>& stops,
                                    MakeModel make_model, MakeObjective make_objective) {
  const ScratchFolder folder;
  const std::string data = folder.write("data.jsonl", random_documents(30, longest, 4));
  const auto train = [&](const std::string& state, int64_t stop_at, bool resume) {
    const Tokenizer tokenizer = byte_tokenizer();
    const DocumentEncoder encoder(tokenizer, nullptr);
    std::vector<DocumentFile> files;
    files.push_back(DocumentFile::open(data));
    DocumentStream stream(files, {}, encoder, {.length = 96});
    Packer packer(stream, 96, 4, 2);
    const std::shared_ptr<Model> model = make_model();
    auto objective = make_objective(*model);
    TrainerConfig config;
    config.steps = 8;
    config.batch_rows = 2;
    config.schedule = {.peak = 1e-2, .floor = 1e-4, .warmup = 1};
    config.save_every = 0;
    config.state_path = state;
    std::atomic<bool> stop = false;
    TrainerHooks hooks;
    hooks.stop = &stop;
    hooks.on_step = [&](const Json& record) { stop = record["step"] == stop_at; };
    const std::unique_ptr<Collective> single = make_single();
    Trainer trainer(*model, packer, objective, *single, config, hooks);
    if (resume) trainer.resume();
    trainer.run();
    return std::pair{trainer.optimizer().values().clone(), trainer.tokens()};
  };
  const auto [whole, tokens] = train(folder.file("whole"), 0, false);
  for (const int64_t stop : stops) {
    const std::string state = folder.file(fmt::format("part-{}", stop));
    train(state, stop, false);
    const auto [values, seen] = train(state, 0, true);
    EXPECT_TRUE(at::equal(values, whole)) << stop;
    EXPECT_EQ(seen, tokens) << stop;
  }
}

}  // namespace coppice::testing
