// Helpers for tests of the engine: tiny random models, models that fail on purpose, and a text made
// of one letter per token.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coppice/cache/validator.h"
#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/engine/engine.h"
#include "coppice/loader/gate_checkpoint.h"
#include "coppice/models/load.h"
#include "coppice/models/registry.h"
#include "tests/support/rival_gates.h"

namespace coppice::testing {

inline constexpr int64_t kVocab = 96;
inline constexpr int64_t kRange = 160;  // positions of the tiny models

inline ModelArgs tiny_args(const std::string& model_type = "llama") {
  ModelArgs args;
  args.model_type = model_type;
  args.hidden_size = 32;
  args.intermediate_size = 48;
  args.num_hidden_layers = 3;
  args.num_attention_heads = 4;
  args.num_key_value_heads = 2;
  args.head_dim = 8;
  args.vocab_size = kVocab;
  args.max_position_embeddings = kRange;
  return args;
}

inline GateWeights random_gate(const ModelArgs& args) {
  GateWeights gate;
  gate.spec.variant = "head-row";
  gate.spec.hidden_layers = 1;
  gate.spec.width = 8;
  gate.spec.layers = args.num_hidden_layers;
  gate.spec.kv_heads = args.num_key_value_heads;
  gate.spec.hidden_size = args.hidden_size;
  const at::Tensor head = torch::randn({args.num_key_value_heads, 8});
  for (int64_t i = 0; i < args.num_hidden_layers; ++i) {
    GateLayer layer;
    layer.w1 = torch::randn({8, args.hidden_size}) * 0.3;
    layer.c1 = torch::randn({8}) * 0.3;
    layer.head = head;
    layer.bias = torch::full({args.num_key_value_heads}, 2.0);
    gate.layers.push_back(layer);
  }
  return gate;
}

inline std::shared_ptr<Model> tiny_model(bool gated = true, const ModelArgs& args = tiny_args(),
                                         std::string_view gate_kind = "retention") {
  torch::NoGradGuard no_grad;
  torch::set_num_threads(1);  // threads cost more than these sizes are worth
  torch::manual_seed(1);
  std::shared_ptr<Model> model = make_model(args);
  for (auto& item : model->named_parameters()) {
    at::Tensor value = item.value();
    if (value.dim() == 1) {
      value.fill_(item.key().find("norm") != std::string::npos ? 1.0 : 0.0);
    } else {
      value.copy_(torch::randn(value.sizes()) * 0.35);
    }
  }
  if (!gated) return model;
  attach_gate(*model,
              gate_kind == "retention"
                  ? random_gate(args)
                  : random_rival_gate(gate_kind, {args.num_hidden_layers, args.num_key_value_heads,
                                                  args.hidden_size, args.num_attention_heads}));
  return model;
}

// One that a policy can run on: the same weights, with gates of the kind that it reads.
inline std::shared_ptr<Model> model_for(const PolicyInfo& info) {
  return tiny_model(true, tiny_args(), info.gate.empty() ? "retention" : info.gate);
}

// Another model as it is: tests override what they want to see.
struct WrappedModel : Model {
  explicit WrappedModel(std::shared_ptr<Model> inner_in)
      : Model(inner_in->args()), inner(register_module("inner", std::move(inner_in))) {
    set_gate_kind(inner->gate_kind());
  }
  ForwardState begin(Batch batch) override { return inner->begin(std::move(batch)); }
  bool advance(ForwardState& state, AttentionBackend& backend, int64_t layers) override {
    return inner->advance(state, backend, layers);
  }
  torch::Tensor finish(ForwardState& state) override { return inner->finish(state); }
  torch::Tensor embed(const torch::Tensor& ids) override { return inner->embed(ids); }
  torch::Tensor logits(const torch::Tensor& hidden) override { return inner->logits(hidden); }

  std::shared_ptr<Model> inner;
};

// Fails on purpose: for a batch that holds `throw_on`, or with scores that are NaN for a sequence
// whose newest token is `poison`.
struct FaultyModel final : WrappedModel {
  using WrappedModel::WrappedModel;

  torch::Tensor finish(ForwardState& state) override {
    torch::Tensor hidden = inner->finish(state);
    for (int64_t i = 0; i < state.batch.num_tokens(); ++i) {
      const int64_t id = state.batch.token_ids[i].item<int64_t>();
      // After the layers have written their entries: the worst moment.
      if (id == throw_on) throw Error(ErrorCode::kInternal, "a fault on purpose");
      if (id == poison) hidden[i].fill_(std::numeric_limits<float>::quiet_NaN());
    }
    return hidden;
  }

  int64_t throw_on = -1;
  int64_t poison = -1;
};

// Token id -> the letter 'A' + id, except for ids that the map names.
class LetterStream final : public TextStream {
 public:
  explicit LetterStream(std::map<int32_t, std::string> special) : special_(std::move(special)) {}
  std::string push(int32_t id) override {
    const auto found = special_.find(id);
    if (found != special_.end()) return found->second;
    return std::string(1, static_cast<char>('A' + id % 26));
  }
  std::string finish() override { return "."; }

 private:
  std::map<int32_t, std::string> special_;
};

inline TextStreamFactory letters(std::map<int32_t, std::string> special = {}) {
  return [special] { return std::make_unique<LetterStream>(special); };
}

inline EngineConfig engine_config(EvictionConfig eviction = {.policy = "full"},
                                  int64_t max_blocks = 4000) {
  EngineConfig config;
  config.max_blocks = max_blocks;
  config.eviction = std::move(eviction);
  config.chunk_tokens = 8;
  return config;
}

inline std::vector<int32_t> random_prompt(Rng& rng, int64_t length) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(rng.below(kVocab)));
  return prompt;
}

inline Request greedy_request(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  return request;
}

inline std::vector<int32_t> ids_of(const std::vector<SampledToken>& tokens) {
  std::vector<int32_t> ids;
  for (const SampledToken& token : tokens) ids.push_back(token.id);
  return ids;
}

// Steps until nothing is left to do: each request's outputs joined, by id.
inline std::map<RequestId, RequestOutput> run_all(Engine& engine) {
  std::map<RequestId, RequestOutput> joined;
  while (engine.has_work()) {
    for (RequestOutput& output : engine.step()) {
      RequestOutput& whole = joined[output.id];
      whole.text += output.text;
      whole.tokens.insert(whole.tokens.end(), output.tokens.begin(), output.tokens.end());
      whole.finish_reason = output.finish_reason;
      whole.error = output.error;
      whole.session = output.session;
      whole.usage = output.usage;
    }
  }
  return joined;
}

inline ErrorCode code_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.code();
  }
  ADD_FAILURE() << "no error was thrown";
  return ErrorCode::kInternal;
}

}  // namespace coppice::testing
