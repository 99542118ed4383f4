// LLaVA-1.5: CLIP's vision transformer, of which one hidden layer (or several, side by side) goes
// through a projector of two layers. The text model is a Llama of its own (models/llama.cpp).
// Source: arXiv:2310.03744, and the published checkpoints.
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/models/vision_parts.h"
#include "coppice/models/vision_towers.h"

namespace coppice::models {
namespace {

struct ClipArgs {
  int64_t hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
  int64_t image_size, patch_size;
  double layer_norm_eps = 1e-5;
  std::string hidden_act = "quick_gelu";

  // Defaults are CLIP's own.
  explicit ClipArgs(const Json& config) {
    constexpr const char* kWhere = "vision_config";
    if (!config.is_object()) fail_argument("config.json: expected {} to be an object", kWhere);
    const Json type = config.value("model_type", Json("clip_vision_model"));
    if (type != "clip_vision_model")
      fail_argument(
          "vision_config: model_type {} is not supported; supported is: "
          "clip_vision_model",
          dump_json(type).substr(0, 40));
    hidden_size = size_of(config, kWhere, "hidden_size", 768);
    intermediate_size = size_of(config, kWhere, "intermediate_size", 3072);
    num_hidden_layers = size_of(config, kWhere, "num_hidden_layers", 12);
    num_attention_heads = size_of(config, kWhere, "num_attention_heads", 12);
    image_size = size_of(config, kWhere, "image_size", 224);
    patch_size = size_of(config, kWhere, "patch_size", 32);
    if (hidden_size % num_attention_heads != 0)
      fail_argument("vision_config: hidden_size {} is not a multiple of {} heads", hidden_size,
                    num_attention_heads);
    if (image_size < patch_size || image_size > 4096)
      fail_argument("vision_config: image_size must be from patch_size to 4096, got {}",
                    image_size);
    if (config.contains("layer_norm_eps") && config["layer_norm_eps"].is_number())
      layer_norm_eps = config["layer_norm_eps"].get<double>();
    if (config.contains("hidden_act") && config["hidden_act"].is_string())
      hidden_act = config["hidden_act"].get<std::string>();
    check_activation(hidden_act);
  }

  int64_t patches() const { return (image_size / patch_size) * (image_size / patch_size); }
};

class ClipLayer final {
 public:
  ClipLayer(const ClipArgs& args, VisionWeights& weights, const std::string& name)
      : heads_(args.num_attention_heads), activation_(args.hidden_act) {
    const int64_t width = args.hidden_size;
    norm1_ = LayerNorm(weights, name + ".layer_norm1", width, args.layer_norm_eps);
    norm2_ = LayerNorm(weights, name + ".layer_norm2", width, args.layer_norm_eps);
    q_ = weights.linear(name + ".self_attn.q_proj", width, width, true);
    k_ = weights.linear(name + ".self_attn.k_proj", width, width, true);
    v_ = weights.linear(name + ".self_attn.v_proj", width, width, true);
    out_ = weights.linear(name + ".self_attn.out_proj", width, width, true);
    fc1_ = weights.linear(name + ".mlp.fc1", width, args.intermediate_size, true);
    fc2_ = weights.linear(name + ".mlp.fc2", args.intermediate_size, width, true);
  }

  at::Tensor forward(const at::Tensor& x) const {
    nn::Linear* const readers[] = {q_.get(), k_.get(), v_.get()};
    const std::vector<at::Tensor> read = nn::forward_together(readers, norm1_.forward(x));
    const at::Tensor attended = attend_to_all(read[0], read[1], read[2], heads_);
    const at::Tensor middle = x + out_->forward(attended);
    const at::Tensor inner = apply_activation(activation_, fc1_->forward(norm2_.forward(middle)));
    return middle + fc2_->forward(inner);
  }

 private:
  int64_t heads_;
  std::string activation_;
  LayerNorm norm1_, norm2_;
  std::shared_ptr<nn::Linear> q_, k_, v_, out_, fc1_, fc2_;
};

// Which hidden states feed the projector: 0 is what the first layer reads, i what layer i gives.
std::vector<int64_t> feature_layers(const Json& config, int64_t layers) {
  const Json given = config.value("vision_feature_layer", Json(-2));
  const Json list = given.is_array() ? given : Json::array({given});
  std::vector<int64_t> result;
  for (const Json& one : list) {
    const bool fits = one.is_number_integer() && one >= -layers - 1 && one <= layers;
    if (!fits)
      fail_argument("vision_feature_layer must be from {} to {}, got {}", -layers - 1, layers,
                    dump_json(one).substr(0, 40));
    const auto layer = one.get<int64_t>();
    result.push_back(layer < 0 ? layers + 1 + layer : layer);
  }
  if (result.empty()) fail_argument("vision_feature_layer names no layer");
  return result;
}

class LlavaTower final : public VisionTower {
 public:
  LlavaTower(const Json& config, int64_t text_width, int64_t image_token_id, WeightLoader& loader,
             WeightMode mode)
      : VisionTower(image_token_id), args_(config.value("vision_config", Json())) {
    features_ = feature_layers(config, args_.num_hidden_layers);
    const Json strategy = config.value("vision_feature_select_strategy", Json("default"));
    if (strategy != "default" && strategy != "full")
      fail_argument("vision_feature_select_strategy must be default or full, got {}",
                    dump_json(strategy).substr(0, 40));
    skip_class_ = strategy == "default";
    const Json act = config.value("projector_hidden_act", Json("gelu"));
    if (act.is_string()) projector_act_ = act.get<std::string>();
    check_activation(projector_act_);
    load(loader, mode, text_width, config.value("multimodal_projector_bias", Json(true)) == true);
  }

  at::Tensor encode(const at::Tensor& pixels, const PictureGrid&) const override {
    const c10::InferenceMode inference;
    const int64_t side = args_.image_size;
    if (pixels.dim() != 3 || pixels.size(0) != 3 || pixels.size(1) != side ||
        pixels.size(2) != side || pixels.scalar_type() != at::kFloat)
      fail_argument(
          "vision tower: expected pixels [3, {0}, {0}] float32, got [{1}]; is the crop "
          "size of preprocessor_config.json the tower's?",
          side, fmt::join(pixels.sizes(), ", "));
    at::Tensor x = pre_norm_.forward(embed(pixels));
    std::vector<at::Tensor> states = {x};
    for (const ClipLayer& layer : layers_) states.push_back(x = layer.forward(x));
    std::vector<at::Tensor> chosen;
    for (const int64_t layer : features_)
      chosen.push_back(skip_class_ ? states[layer].slice(0, 1) : states[layer]);
    const at::Tensor joined = (chosen.size() == 1 ? chosen[0] : at::cat(chosen, 1)).contiguous();
    return linear2_->forward(apply_activation(projector_act_, linear1_->forward(joined)));
  }

 private:
  void load(WeightLoader& loader, WeightMode mode, int64_t text_width, bool bias) {
    const std::string root = "vision_tower.";
    VisionWeights weights(loader, mode);
    const int64_t width = args_.hidden_size, patch = args_.patch_size;
    class_ = weights.tensor(root + "embeddings.class_embedding", {width});
    patches_ = weights.tensor(root + "embeddings.patch_embedding.weight", {width, 3, patch, patch})
                   .reshape({width, -1});
    positions_ =
        weights.tensor(root + "embeddings.position_embedding.weight", {args_.patches() + 1, width});
    pre_norm_ = LayerNorm(weights, root + "pre_layrnorm", width, args_.layer_norm_eps);
    // Layers past the last that feeds the projector are never run.
    const int64_t last = *std::max_element(features_.begin(), features_.end());
    const auto layer_name = [&](int64_t i) { return root + "encoder.layers." + std::to_string(i); };
    for (int64_t i = 0; i < last; ++i) layers_.emplace_back(args_, weights, layer_name(i));
    for (const std::string& name : loader.checkpoint().names()) {
      bool unused = name.starts_with(root + "post_layernorm.") || name.ends_with(".position_ids");
      for (int64_t i = last; i < args_.num_hidden_layers; ++i)
        unused = unused || name.starts_with(layer_name(i) + ".");
      if (unused) loader.ignore(name);
    }
    const int64_t joined = width * static_cast<int64_t>(features_.size());
    linear1_ = weights.linear("multi_modal_projector.linear_1", joined, text_width, bias);
    linear2_ = weights.linear("multi_modal_projector.linear_2", text_width, text_width, bias);
  }

  // [3, S, S] -> [1 + patches, C]: the class token, then patches row by row.
  at::Tensor embed(const at::Tensor& pixels) const {
    const int64_t patch = args_.patch_size, side = args_.image_size / patch;
    const at::Tensor flat = pixels.slice(1, 0, side * patch)
                                .slice(2, 0, side * patch)
                                .reshape({3, side, patch, side, patch})
                                .permute({1, 3, 0, 2, 4})
                                .reshape({side * side, 3 * patch * patch});
    return at::cat({class_.unsqueeze(0), at::linear(flat, patches_)}) + positions_;
  }

  ClipArgs args_;
  std::vector<int64_t> features_;
  bool skip_class_ = true;
  std::string projector_act_ = "gelu";
  at::Tensor class_, patches_, positions_;
  LayerNorm pre_norm_;
  std::vector<ClipLayer> layers_;
  std::shared_ptr<nn::Linear> linear1_, linear2_;
};

}  // namespace

std::unique_ptr<VisionTower> make_llava_tower(const Json& config, const ModelArgs& text,
                                              WeightLoader& loader, WeightMode mode) {
  const char* const key = config.contains("image_token_index") || !config.contains("image_token_id")
                              ? "image_token_index"
                              : "image_token_id";
  const int64_t id = image_token_of(config, key, 32000, text.vocab_size);
  return std::make_unique<LlavaTower>(config, text.hidden_size, id, loader, mode);
}

}  // namespace coppice::models
