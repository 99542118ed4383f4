// The decoder that Llama and its relatives share: embeddings, equal layers, a final norm, a head.
// An architecture is a choice of DecoderOptions; one that differs in more writes its own Model.
#pragma once

#include <memory>
#include <vector>

#include "coppice/models/model.h"
#include "coppice/nn/decoder_layer.h"
#include "coppice/nn/embedding.h"
#include "coppice/nn/linear.h"
#include "coppice/nn/rms_norm.h"
#include "coppice/ops/rope.h"

namespace coppice::models {

struct DecoderOptions {
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;
  bool mlp_bias = false;
};

// Submodules: model.embed_tokens, model.layers.{i}, model.norm; lm_head unless tied.
class Decoder final : public Model {
 public:
  Decoder(const ModelArgs& args, const DecoderOptions& options);

  ForwardState begin(Batch batch) override;
  bool advance(ForwardState& state, AttentionBackend& backend, int64_t layers) override;
  torch::Tensor finish(ForwardState& state) override;
  torch::Tensor embed(const torch::Tensor& ids) override;
  torch::Tensor logits(const torch::Tensor& hidden) override;

 private:
  ops::RopeTable rope_;
  std::shared_ptr<nn::Embedding> embed_tokens_;
  std::vector<std::shared_ptr<nn::DecoderLayer>> layers_;
  std::shared_ptr<nn::RmsNorm> norm_;
  std::shared_ptr<nn::Linear> lm_head_;  // null when tied
};

// The rotation table that ModelArgs asks for. Throws kInvalidArgument when factors do not fit.
// With three-part positions, frequency i belongs to height where i = 1, 4, 7, ..., to width where i
// = 2, 5, 8, ..., each until its section is full, and to time elsewhere.
ops::RopeTable make_rope_table(const ModelArgs& args);

}  // namespace coppice::models
