// The vision side of Qwen3-VL, dense: a transformer over the patches of a picture of any size.
// Learned positions of a square grid are interpolated to the picture's own, rows and columns turn
// queries and keys, each square of patches becomes one token, and some layers' states go to the
// text model's first layers besides (DeepStack). The text model is models/qwen3_vl_text.cpp.
// Source: arXiv:2511.21631, and the published checkpoints.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/models/vision_parts.h"
#include "coppice/models/vision_towers.h"
#include "coppice/ops/rope.h"

namespace coppice::models {
namespace {

constexpr double kEps = 1e-6;

struct TowerArgs {
  int64_t depth, hidden_size, intermediate_size, num_heads, patch_size, temporal_patch_size;
  int64_t merge_size, num_positions, out_hidden_size;
  double rope_theta = 10000.0;
  std::string hidden_act = "gelu_pytorch_tanh";
  std::vector<int64_t> deepstack;  // after which layers

  // Defaults are those of the published models.
  explicit TowerArgs(const Json& config) {
    constexpr const char* kWhere = "vision_config";
    if (!config.is_object()) fail_argument("config.json: expected {} to be an object", kWhere);
    const Json type = config.value("model_type", Json("qwen3_vl"));
    if (type != "qwen3_vl" && type != "qwen3_vl_vision")
      fail_argument("{}: model_type {} is not supported; supported are: qwen3_vl, qwen3_vl_vision",
                    kWhere, dump_json(type).substr(0, 40));
    const auto size = [&](const char* key, int64_t missing) {
      return size_of(config, kWhere, key, missing);
    };
    depth = size("depth", 27);
    hidden_size = size("hidden_size", 1152);
    intermediate_size = size("intermediate_size", 4304);
    num_heads = size("num_heads", 16);
    patch_size = size("patch_size", 16);
    temporal_patch_size = size("temporal_patch_size", 2);
    merge_size = size("spatial_merge_size", 2);
    out_hidden_size = size("out_hidden_size", 3584);
    num_positions = size("num_position_embeddings", 2304);
    if (size("in_channels", 3) != 3) fail_argument("{}: in_channels must be 3", kWhere);
    if (hidden_size % num_heads != 0 || (hidden_size / num_heads) % 4 != 0)
      fail_argument("{}: hidden_size {} does not divide into {} heads of a multiple of 4", kWhere,
                    hidden_size, num_heads);
    read_rest(config);
  }

  int64_t head_dim() const { return hidden_size / num_heads; }
  int64_t positions_side() const {
    return static_cast<int64_t>(std::sqrt(static_cast<double>(num_positions)));
  }
  int64_t patch_values() const { return 3 * temporal_patch_size * patch_size * patch_size; }

 private:
  void read_rest(const Json& config) {
    if (config.contains("hidden_act") && config["hidden_act"].is_string())
      hidden_act = config["hidden_act"].get<std::string>();
    check_activation(hidden_act);
    const Json rope = config.value("rope_parameters", Json());
    if (rope.is_object() && rope.contains("rope_theta")) {
      if (!rope["rope_theta"].is_number() || !(rope["rope_theta"].get<double>() > 0))
        fail_argument("vision_config: rope_theta must be a number above 0, got {}",
                      dump_json(rope["rope_theta"]).substr(0, 40));
      rope_theta = rope["rope_theta"].get<double>();
    }
    const Json layers = config.value("deepstack_visual_indexes", Json({8, 16, 24}));
    for (const Json& one : layers) {
      const bool fits = one.is_number_integer() && one >= 0 && one < depth &&
                        (deepstack.empty() || one > deepstack.back());
      if (!fits)
        fail_argument(
            "vision_config: deepstack_visual_indexes must rise and stay below depth {}, got {}",
            depth, dump_json(layers).substr(0, 80));
      deepstack.push_back(one.get<int64_t>());
    }
  }
};

class Block final {
 public:
  Block(const TowerArgs& args, VisionWeights& weights, const std::string& name)
      : heads_(args.num_heads), activation_(args.hidden_act) {
    const int64_t width = args.hidden_size;
    norm1_ = LayerNorm(weights, name + ".norm1", width, kEps);
    norm2_ = LayerNorm(weights, name + ".norm2", width, kEps);
    qkv_ = weights.linear(name + ".attn.qkv", width, 3 * width, true);
    proj_ = weights.linear(name + ".attn.proj", width, width, true);
    fc1_ = weights.linear(name + ".mlp.linear_fc1", width, args.intermediate_size, true);
    fc2_ = weights.linear(name + ".mlp.linear_fc2", args.intermediate_size, width, true);
  }

  at::Tensor forward(const at::Tensor& x, const ops::RopeAngles& angles) const {
    const int64_t tokens = x.size(0), width = x.size(1);
    const std::vector<at::Tensor> read = qkv_->forward(norm1_.forward(x)).chunk(3, 1);
    const auto turned = [&](const at::Tensor& part) {
      const at::Tensor heads = part.contiguous().view({tokens, heads_, width / heads_});
      return ops::apply_rope(heads, angles).view({tokens, width});
    };
    const at::Tensor attended = attend_to_all(turned(read[0]), turned(read[1]), read[2], heads_);
    const at::Tensor middle = x + proj_->forward(attended);
    return middle +
           fc2_->forward(apply_activation(activation_, fc1_->forward(norm2_.forward(middle))));
  }

 private:
  int64_t heads_;
  std::string activation_;
  LayerNorm norm1_, norm2_;
  std::shared_ptr<nn::Linear> qkv_, proj_, fc1_, fc2_;
};

// merge x merge patches, which stand beside each other, to one token of the text model's width.
class Merger final {
 public:
  // The last one norms patches, those of DeepStack what they are joined to.
  Merger(const TowerArgs& args, VisionWeights& weights, const std::string& name, bool norm_joined)
      : joined_(args.hidden_size * args.merge_size * args.merge_size), norm_joined_(norm_joined) {
    norm_ = LayerNorm(weights, name + ".norm", norm_joined ? joined_ : args.hidden_size, kEps);
    fc1_ = weights.linear(name + ".linear_fc1", joined_, joined_, true);
    fc2_ = weights.linear(name + ".linear_fc2", joined_, args.out_hidden_size, true);
  }

  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor normed = norm_joined_ ? norm_.forward(x.reshape({-1, joined_}))
                                           : norm_.forward(x).reshape({-1, joined_});
    return fc2_->forward(apply_activation("gelu", fc1_->forward(normed)));
  }

 private:
  int64_t joined_;
  bool norm_joined_;
  LayerNorm norm_;
  std::shared_ptr<nn::Linear> fc1_, fc2_;
};

// Row and column of each patch, in the order of the image processor: squares of merge x merge one
// after another. [2][patches]
std::pair<at::Tensor, at::Tensor> patch_places(const PictureGrid& grid, int64_t merge) {
  const auto ordered = [&](const at::Tensor& of_grid) {
    return of_grid.reshape({grid.height / merge, merge, grid.width / merge, merge})
        .transpose(1, 2)
        .reshape({-1});
  };
  const at::Tensor rows = at::arange(grid.height, at::kLong).unsqueeze(1);
  const at::Tensor columns = at::arange(grid.width, at::kLong).unsqueeze(0);
  return {ordered(rows.expand({grid.height, grid.width})),
          ordered(columns.expand({grid.height, grid.width}))};
}

// Where places 0 .. size - 1 lie among `side` ones that share both ends: the one below, and how far
// from it.
struct Between {
  at::Tensor below, above;  // [patches] int64
  at::Tensor share;         // [patches, 1] float32, of `above`

  Between(const at::Tensor& places, int64_t size, int64_t side) {
    const at::Tensor exact = places.to(at::kFloat) * static_cast<double>(side - 1) /
                             static_cast<double>(std::max<int64_t>(size - 1, 1));
    const at::Tensor floor = exact.floor();
    below = floor.to(at::kLong).clamp(0, side - 1);
    above = (below + 1).clamp_max(side - 1);
    share = (exact - floor).unsqueeze(1);
  }
};

class Qwen3VlTower final : public VisionTower {
 public:
  Qwen3VlTower(const TowerArgs& args, int64_t image_token_id, VisionWeights weights)
      : VisionTower(image_token_id, args.merge_size), args_(args), rope_(axial_table(args)) {
    const std::string root = "visual.";
    const int64_t width = args.hidden_size, patch = args.patch_size;
    patches_ = weights
                   .tensor(root + "patch_embed.proj.weight",
                           {width, 3, args.temporal_patch_size, patch, patch})
                   .reshape({width, args.patch_values()});
    patch_bias_ = weights.tensor(root + "patch_embed.proj.bias", {width});
    positions_ = weights.tensor(root + "pos_embed.weight", {args.num_positions, width});
    for (int64_t i = 0; i < args.depth; ++i)
      blocks_.emplace_back(args, weights, root + "blocks." + std::to_string(i));
    merger_.emplace_back(args, weights, root + "merger", false);
    for (std::size_t i = 0; i < args.deepstack.size(); ++i)
      merger_.emplace_back(args, weights, root + "deepstack_merger_list." + std::to_string(i),
                           true);
  }

  at::Tensor encode(const at::Tensor& pixels, const PictureGrid& grid) const override {
    const c10::InferenceMode inference;
    check(pixels, grid);
    const auto [rows, columns] = patch_places(grid, args_.merge_size);
    at::Tensor x = at::linear(pixels, patches_, patch_bias_) + interpolated(grid, rows, columns);
    const ops::RopeAngles angles =
        rope_.angles(at::stack({at::zeros_like(rows), rows, columns}), at::kFloat);
    std::vector<at::Tensor> features(1);
    for (int64_t i = 0; i < args_.depth; ++i) {
      x = blocks_[static_cast<std::size_t>(i)].forward(x, angles);
      const std::size_t next = features.size() - 1;
      if (next < args_.deepstack.size() && args_.deepstack[next] == i)
        features.push_back(merger_[next + 1].forward(x));
    }
    features[0] = merger_[0].forward(x);
    return at::cat(features, 1);
  }

 private:
  // A head's first half of frequencies turns with the row, the second, equal, with the column.
  static ops::RopeTable axial_table(const TowerArgs& args) {
    const int64_t half = args.head_dim() / 2;
    const at::Tensor each = ops::rope_frequencies(args.rope_theta, half);
    std::vector<int64_t> axes(static_cast<std::size_t>(half), 1);
    std::fill(axes.begin() + half / 2, axes.end(), 2);
    return ops::RopeTable(at::cat({each, each}), axes);
  }

  void check(const at::Tensor& pixels, const PictureGrid& grid) const {
    const int64_t merge = args_.merge_size;
    constexpr int64_t kMostSide = 1 << 20;
    const bool fits = grid.height > 0 && grid.width > 0 && grid.height < kMostSide &&
                      grid.width < kMostSide && grid.height % merge == 0 && grid.width % merge == 0;
    if (!fits || pixels.dim() != 2 || pixels.size(0) != grid.height * grid.width ||
        pixels.size(1) != args_.patch_values() || pixels.scalar_type() != at::kFloat)
      fail_argument(
          "vision tower: expected patches [height x width, {}] float32 of sides that are multiples "
          "of {}, got [{}] for {} x {}; are the sizes of preprocessor_config.json the tower's?",
          args_.patch_values(), merge, fmt::join(pixels.sizes(), ", "), grid.height, grid.width);
  }

  // The learned positions at the picture's places, [patches, C].
  at::Tensor interpolated(const PictureGrid& grid, const at::Tensor& rows,
                          const at::Tensor& columns) const {
    const int64_t side = args_.positions_side();
    const Between down(rows, grid.height, side), across(columns, grid.width, side);
    const auto at = [&](const at::Tensor& row, const at::Tensor& column) {
      return positions_.index_select(0, row * side + column);
    };
    const at::Tensor upper = (1 - across.share) * at(down.below, across.below) +
                             across.share * at(down.below, across.above);
    const at::Tensor lower = (1 - across.share) * at(down.above, across.below) +
                             across.share * at(down.above, across.above);
    return (1 - down.share) * upper + down.share * lower;
  }

  TowerArgs args_;
  ops::RopeTable rope_;
  at::Tensor patches_, patch_bias_, positions_;
  std::vector<Block> blocks_;
  std::vector<Merger> merger_;  // of the last layer, then those of DeepStack
};

}  // namespace

std::unique_ptr<VisionTower> make_qwen3_vl_tower(const Json& config, const ModelArgs& text,
                                                 WeightLoader& loader, WeightMode mode) {
  const TowerArgs args(config.value("vision_config", Json()));
  if (args.out_hidden_size != text.hidden_size)
    fail_argument("vision_config: out_hidden_size {} is not the text model's hidden_size {}",
                  args.out_hidden_size, text.hidden_size);
  const int64_t id = image_token_of(config, "image_token_id", 151655, text.vocab_size);
  return std::make_unique<Qwen3VlTower>(args, id, VisionWeights(loader, mode));
}

}  // namespace coppice::models
