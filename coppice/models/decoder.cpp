#include "coppice/models/decoder.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "coppice/core/error.h"

namespace coppice::models {
namespace {

nn::DecoderLayerOptions layer_options(const ModelArgs& args, const DecoderOptions& options) {
  nn::DecoderLayerOptions layer;
  layer.attention.hidden_size = args.hidden_size;
  layer.attention.num_heads = args.num_attention_heads;
  layer.attention.num_kv_heads = args.num_key_value_heads;
  layer.attention.head_dim = args.head_dim;
  layer.attention.qkv_bias = options.qkv_bias;
  layer.attention.output_bias = options.output_bias;
  layer.attention.qk_norm = options.qk_norm;
  layer.attention.rms_norm_eps = args.rms_norm_eps;
  layer.intermediate_size = args.intermediate_size;
  layer.mlp_bias = options.mlp_bias;
  return layer;
}

at::Tensor scaled_frequencies(const ModelArgs& args) {
  const at::Tensor plain = ops::rope_frequencies(args.rope_theta, args.head_dim);
  const RopeArgs& rope = args.rope;
  if (rope.rope_type == "default") return plain;
  if (rope.rope_type == "linear") return ops::scale_rope_linear(plain, rope.factor);
  if (rope.rope_type == "llama3")
    return ops::scale_rope_llama3(plain, {rope.factor, rope.low_freq_factor, rope.high_freq_factor,
                                          rope.original_max_position_embeddings});
  fail_argument("rope_type \"{}\" is not supported; supported are: default, linear, llama3",
                rope.rope_type);
}

std::vector<int64_t> axes_of_frequencies(const ModelArgs& args) {
  const std::vector<int64_t>& sections = args.rope.mrope_section;
  if (sections.empty()) return {};
  std::vector<int64_t> axes(static_cast<std::size_t>(args.head_dim / 2), 0);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::size_t axis = i % 3;
    if (axis != 0 && static_cast<int64_t>(i) < 3 * sections[axis])
      axes[i] = static_cast<int64_t>(axis);
  }
  return axes;
}

// Embeddings that bring more than the first layer's input: what layer i adds behind itself.
at::Tensor deepstack_part(const Batch& batch, int64_t layer, const ModelArgs& args) {
  if (!batch.embeddings.defined() || layer >= args.deepstack_layers) return {};
  return batch.embeddings.narrow(1, (layer + 1) * args.hidden_size, args.hidden_size);
}

}  // namespace

ops::RopeTable make_rope_table(const ModelArgs& args) {
  at::Tensor frequencies = scaled_frequencies(args);
  const std::vector<float>& factors = args.rope.frequency_factors;
  if (factors.empty()) return ops::RopeTable(frequencies, axes_of_frequencies(args));
  if (static_cast<int64_t>(factors.size()) != frequencies.numel())
    fail_argument("rope: expected {} frequency factors, got {}", frequencies.numel(),
                  factors.size());
  for (float factor : factors)
    if (!(factor > 0)) fail_argument("rope: a frequency factor must be above 0, got {}", factor);
  return ops::RopeTable(frequencies / torch::tensor(factors, torch::kFloat),
                        axes_of_frequencies(args));
}

Decoder::Decoder(const ModelArgs& args, const DecoderOptions& options)
    : Model(args), rope_(make_rope_table(args)) {
  auto body = std::make_shared<torch::nn::Module>();
  embed_tokens_ = body->register_module(
      "embed_tokens", std::make_shared<nn::Embedding>(args.vocab_size, args.hidden_size));
  torch::nn::ModuleList layers;
  for (int64_t i = 0; i < args.num_hidden_layers; ++i) {
    layers_.push_back(std::make_shared<nn::DecoderLayer>(layer_options(args, options), i));
    layers->push_back(layers_.back());
  }
  body->register_module("layers", layers);
  norm_ = body->register_module("norm",
                                std::make_shared<nn::RmsNorm>(args.hidden_size, args.rms_norm_eps));
  register_module("model", body);
  if (!args.tie_word_embeddings)
    lm_head_ = register_module(
        "lm_head", std::make_shared<nn::Linear>(args.hidden_size, args.vocab_size, false));
}

ForwardState Decoder::begin(Batch batch) {
  validate(batch);
  at::Tensor x;
  if (batch.token_ids.defined()) {
    x = embed_tokens_->forward(batch.token_ids);
  } else {
    if (batch.embeddings.size(1) != args().embedding_width())
      fail_argument("batch: expected embeddings [{}, {}], got [{}, {}]", batch.num_tokens(),
                    args().embedding_width(), batch.num_tokens(), batch.embeddings.size(1));
    // A copy: the layers add to x in place.
    x = batch.embeddings.narrow(1, 0, args().hidden_size).clone(at::MemoryFormat::Contiguous);
  }
  // Never in 16 bits: neighbouring positions would share their angles.
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  ops::RopeAngles angles = rope_.angles(batch.positions, wide);
  return {.batch = std::move(batch), .angles = std::move(angles), .x = std::move(x), .delta = {}};
}

bool Decoder::advance(ForwardState& state, AttentionBackend& backend, int64_t layers) {
  const auto all = static_cast<int64_t>(layers_.size());
  const int64_t end = std::min(all, state.next_layer + layers);
  for (int64_t& i = state.next_layer; i < end; ++i) {
    state.delta = layers_[static_cast<std::size_t>(i)]->forward(state.x, state.delta, state.angles,
                                                                state.batch, backend);
    const at::Tensor more = deepstack_part(state.batch, i, args());
    if (more.defined()) state.delta = state.delta + more;
  }
  return state.next_layer == all;
}

torch::Tensor Decoder::finish(ForwardState& state) {
  return state.delta.defined() ? norm_->add_forward(state.x, state.delta) : norm_->forward(state.x);
}

torch::Tensor Decoder::embed(const torch::Tensor& ids) { return embed_tokens_->forward(ids); }

torch::Tensor Decoder::logits(const torch::Tensor& hidden) {
  return lm_head_ ? lm_head_->forward(hidden.contiguous()) : embed_tokens_->project(hidden);
}

}  // namespace coppice::models
