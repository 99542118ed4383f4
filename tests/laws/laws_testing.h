// What the laws share: every architecture tiny and random, a runner that feeds a sequence as
// serving does and notes what each token saw, and dense attention under the masks that were noted.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coppice/attention/paged_backend.h"
#include "coppice/cache/validator.h"
#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/engine/pass.h"
#include "coppice/eviction/policy.h"
#include "coppice/loader/gate_checkpoint.h"
#include "coppice/models/load.h"
#include "coppice/models/registry.h"
#include "coppice/ops/attention_reference.h"

namespace coppice::laws {

using torch::Tensor;

inline constexpr int64_t kVocab = 64;

struct Architecture {
  std::string name;
  ModelArgs args;
};

inline ModelArgs tiny_args(const std::string& model_type) {
  ModelArgs args;
  args.model_type = model_type;
  args.hidden_size = 24;
  args.intermediate_size = 40;
  args.num_hidden_layers = 3;
  args.num_attention_heads = 6;
  args.num_key_value_heads = 2;
  args.head_dim = 8;
  args.vocab_size = kVocab;
  args.max_position_embeddings = 512;
  if (has_three_part_positions(model_type)) args.rope.mrope_section = {2, 1, 1};
  return args;
}

// Every supported architecture, and the options of ModelArgs that change what attention sees.
inline std::vector<Architecture> architectures() {
  std::vector<Architecture> all;
  for (const std::string& name : supported_architectures()) all.push_back({name, tiny_args(name)});
  Architecture scaled = {"llama, scaled rope, bias, tied", tiny_args("llama")};
  scaled.args.rope.rope_type = "llama3";
  scaled.args.rope.factor = 8.0;
  scaled.args.rope.original_max_position_embeddings = 64;
  scaled.args.attention_bias = true;
  scaled.args.mlp_bias = true;
  scaled.args.tie_word_embeddings = true;
  all.push_back(scaled);
  return all;
}

inline GateWeights random_gate(const ModelArgs& args) {
  GateWeights gate;
  gate.spec.variant = "head-row";
  gate.spec.hidden_layers = 1;
  gate.spec.width = 6;
  gate.spec.layers = args.num_hidden_layers;
  gate.spec.kv_heads = args.num_key_value_heads;
  gate.spec.hidden_size = args.hidden_size;
  const Tensor head = torch::randn({args.num_key_value_heads, 6});
  for (int64_t i = 0; i < args.num_hidden_layers; ++i) {
    GateLayer layer;
    layer.w1 = torch::randn({6, args.hidden_size}) * 0.5;
    layer.c1 = torch::randn({6}) * 0.3;
    layer.head = head;
    // Heads differ in how fast they forget, so that a global budget makes rows uneven.
    layer.bias = torch::linspace(1.0, 4.0, args.num_key_value_heads) + 0.5 * static_cast<double>(i);
    gate.layers.push_back(layer);
  }
  return gate;
}

inline std::shared_ptr<Model> tiny_model(const ModelArgs& args, at::ScalarType dtype) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  std::shared_ptr<Model> model = make_model(args);
  for (auto& item : model->named_parameters()) {
    const bool norm = item.key().find("norm") != std::string::npos;
    item.value().normal_(norm ? 1.0 : 0.0, norm ? 0.1 : 0.3);
  }
  attach_gate(*model, random_gate(args));
  model->to(dtype);
  return model;
}

inline std::vector<int32_t> random_tokens(Rng& rng, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(rng.below(kVocab)));
  return tokens;
}

inline CacheConfig cache_config(const ModelArgs& args, at::ScalarType dtype,
                                int64_t max_blocks = 400) {
  CacheConfig config;
  config.num_layers = args.num_hidden_layers;
  config.num_kv_heads = args.num_key_value_heads;
  config.head_dim = args.head_dim;
  config.dtype = dtype;
  config.max_blocks = max_blocks;
  return config;
}

inline EvictionConfig eviction_config(const PolicyInfo& info, int64_t budget) {
  EvictionConfig config;
  config.policy = info.name;
  if (info.name != "full") config.budget_entries = budget;
  if (budget < 4) config.sinks = 0;
  return config;
}

// Everything that no row holds becomes NaN, so that reading it shows.
inline void poison_free_slots(KvCache& cache) {
  Tensor free = torch::ones({cache.keys().size(0), kBlockEntries}, torch::kBool);
  auto flags = free.accessor<bool, 2>();
  for (const SequenceId id : cache.sequences())
    for (const BlockTable& row : cache.rows(id))
      for (int64_t e = 0; e < row.length; ++e)
        flags[row.blocks[static_cast<std::size_t>(e / kBlockEntries)]][e % kBlockEntries] = false;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  cache.keys().masked_fill_(free.unsqueeze(1), nan);
  cache.values().masked_fill_(free.unsqueeze(2), nan);
}

// A model, a cache and a policy, fed as the engine feeds them.
struct Runner {
  std::shared_ptr<Model> model;
  KvCache cache;
  PagedBackend backend;
  EvictionPolicy policy;

  Runner(std::shared_ptr<Model> model_in, const EvictionConfig& eviction, at::ScalarType dtype,
         int64_t max_blocks = 400)
      : model(std::move(model_in)),
        cache(cache_config(model->args(), dtype, max_blocks)),
        backend(cache),
        policy(eviction, cache.config()) {}

  // One pass of several sequences -> hidden states of all, [N, C].
  Tensor pass(const std::vector<std::pair<SequenceId, std::vector<int32_t>>>& inputs) {
    torch::NoGradGuard no_grad;
    std::vector<PassPart> parts;
    for (const auto& [id, tokens] : inputs) parts.push_back({id, tokens, &policy});
    const Tensor hidden = forward_pass(*model, backend, cache, parts);
    for (const PassPart& part : parts) commit_pass(cache, part);
    return hidden;
  }

  // A whole sequence in chunks -> [T, C].
  Tensor feed(SequenceId id, const std::vector<int32_t>& tokens, int64_t chunk) {
    std::vector<Tensor> outs;
    for (std::size_t first = 0; first < tokens.size(); first += static_cast<std::size_t>(chunk)) {
      const std::size_t end = std::min(tokens.size(), first + static_cast<std::size_t>(chunk));
      outs.push_back(pass({{id,
                            {tokens.begin() + static_cast<std::ptrdiff_t>(first),
                             tokens.begin() + static_cast<std::ptrdiff_t>(end)}}}));
    }
    return torch::cat(outs);
  }
};

// Dense attention of one sequence under a mask per layer: visible[layer] is [Hkv, T, T] bool.
struct MaskedBackend final : AttentionBackend {
  std::vector<Tensor> visible;

  Tensor forward(const AttentionInput& input, const Batch&) override {
    return ops::attention_reference(input.q, input.k, input.v, input.scale,
                                    visible[static_cast<std::size_t>(input.layer)]);
  }
};

// The hidden states of a whole sequence in one pass over a backend that needs no cache.
inline Tensor run_whole(Model& model, const std::vector<int32_t>& tokens,
                        AttentionBackend& backend) {
  torch::NoGradGuard no_grad;
  Batch batch;
  const std::vector<int64_t> ids(tokens.begin(), tokens.end());
  batch.token_ids = torch::tensor(ids, torch::kLong);
  batch.positions = torch::arange(static_cast<int64_t>(ids.size()), torch::kLong);
  batch.sequence_ids = {0};
  batch.cu_seqlens = {0, static_cast<int64_t>(ids.size())};
  return model.forward(batch, backend);
}

// Marks in `visible` what tokens first .. first + count - 1 of the sequence are about to see: what
// its rows hold now, and each other up to themselves.
inline void note_visible(const KvCache& cache, SequenceId id, int64_t first, int64_t count,
                         std::vector<Tensor>& visible) {
  for (int64_t layer = 0; layer < cache.config().num_layers; ++layer)
    for (int64_t head = 0; head < cache.config().num_kv_heads; ++head) {
      const Tensor rows = visible[static_cast<std::size_t>(layer)][head].narrow(0, first, count);
      for (const int32_t p : cache.read_row(id, layer, head).positions)
        rows.select(1, p).fill_(true);
      rows.narrow(1, first, count).copy_(ops::causal_mask(count, count, 0));
    }
}

// Largest difference, over the largest number expected (or 1).
inline double distance(const Tensor& got, const Tensor& expected) {
  if (got.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  const Tensor exact = expected.to(torch::kDouble);
  const double worst = (got.to(torch::kDouble) - exact).abs().max().item<double>();
  if (std::isnan(worst)) return std::numeric_limits<double>::infinity();
  return worst / std::max(1.0, exact.abs().max().item<double>());
}

// Rounding of what went through a tiny model.
inline double tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-10 : 1e-5; }

}  // namespace coppice::laws
