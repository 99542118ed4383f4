// Qwen3-VL from a folder, picture files included, against what transformers computed.
#include <gtest/gtest.h>

#include "coppice/core/error.h"
#include "coppice/models/decoder.h"
#include "tests/parity/changed_folder.h"
#include "tests/parity/golden_qwen3_vl.h"

namespace coppice {
namespace {

using golden::Qwen;
using golden::qwen_cases;
using golden::qwen_expected;

constexpr double kTolerance = 1e-4;
const char* const kPictures[] = {"photo.png", "RGB.png", "lossless.webp", "rgb444.jpg"};

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

const Qwen& qwen() {
  static const Qwen loaded;
  return loaded;
}

PictureGrid grid_of(const std::string& picture) {
  const at::Tensor grid = qwen_expected(picture + ".grid");
  return {grid[0].item<int64_t>(), grid[1].item<int64_t>()};
}

TEST(Qwen3VlParity, I11_pixels_and_grids_equal_the_reference) {
  for (const std::string picture : kPictures) {
    // A JPEG's pixels may differ by one step between versions of the library.
    const bool exact = !picture.ends_with(".jpg");
    const VisionInput input = qwen().input(picture);
    EXPECT_EQ(input.grid_height, grid_of(picture).height) << picture;
    EXPECT_EQ(input.grid_width, grid_of(picture).width) << picture;
    const at::Tensor pixels = torch::tensor(input.values).view(input.shape);
    EXPECT_LE(largest_difference(pixels, qwen_expected(picture + ".pixels")), exact ? 1e-5 : 0.04)
        << picture;
  }
}

TEST(Qwen3VlParity, features_of_all_levels_equal_the_reference) {
  for (const std::string picture : kPictures) {
    const at::Tensor features =
        qwen().tower->encode(qwen_expected(picture + ".pixels"), grid_of(picture));
    const at::Tensor wanted = qwen_expected(picture + ".features");
    ASSERT_EQ(features.sizes(), wanted.sizes()) << picture;
    EXPECT_LE(largest_difference(features, wanted), kTolerance) << picture;
  }
}

TEST(Qwen3VlParity, I17_angles_of_three_part_positions_equal_the_reference) {
  const ops::RopeTable table = models::make_rope_table(qwen().model->args());
  const at::Tensor places = torch::tensor({5, 0, 90, 2, 0, 3, 7, 0, 11}, torch::kLong).view({3, 3});
  const ops::RopeAngles angles = table.angles(places, at::kFloat);
  EXPECT_LE(largest_difference(angles.cos, qwen_expected("angles.cos")), 1e-6);
  EXPECT_LE(largest_difference(angles.sin, qwen_expected("angles.sin")), 1e-6);
  EXPECT_LE(largest_difference(table.turns(places).cos(), qwen_expected("angles.cos")), 1e-5);
}

// Text tokens embedded, pictures put where their tokens stand.
at::Tensor embeddings(const at::Tensor& ids, const std::vector<std::string>& pictures) {
  const ModelArgs& args = qwen().model->args();
  at::Tensor result = torch::zeros({ids.size(0), args.embedding_width()});
  result.narrow(1, 0, args.hidden_size).copy_(qwen().model->embed(ids));
  const at::Tensor places = (ids == golden::kQwenImageId).nonzero().view({-1});
  std::vector<at::Tensor> features;
  for (const std::string& picture : pictures) features.push_back(qwen().features(picture));
  if (!features.empty()) result.index_copy_(0, places, at::cat(features));
  return result;
}

TEST(Qwen3VlParity, logits_equal_the_reference) {
  const torch::InferenceMode inference;
  EXPECT_EQ(qwen().model->args().embedding_width(), 3 * 32);
  for (const auto& [name, pictures] : qwen_cases()) {
    Batch batch = golden::single(qwen_expected(name + ".prompt"));
    batch.positions = qwen_expected(name + ".positions").contiguous();
    batch.embeddings = embeddings(batch.token_ids, pictures);
    batch.token_ids = at::Tensor();
    DenseBackend backend;
    const at::Tensor hidden = qwen().model->forward(batch, backend);
    EXPECT_LE(largest_difference(qwen().model->logits(hidden), qwen_expected(name + ".logits")),
              kTolerance)
        << name;
  }
}

TEST(Qwen3VlParity, text_needs_neither_wide_embeddings_nor_three_parts) {
  const torch::InferenceMode inference;
  const at::Tensor logits = golden::all_logits(*qwen().model, qwen_expected("text.prompt"));
  EXPECT_LE(largest_difference(logits, qwen_expected("text.logits")), kTolerance);
}

TEST(Qwen3VlParity, packed_weights_stay_close) {
  const auto tower = load_vision(qwen().checkpoint, WeightMode::kPacked);
  const at::Tensor wanted = qwen_expected("photo.png.features");
  EXPECT_LE(largest_difference(
                tower->encode(qwen_expected("photo.png.pixels"), grid_of("photo.png")), wanted),
            0.05 * wanted.abs().max().item<double>());
}

TEST(Qwen3VlParity, planned_bytes_are_those_of_the_tensors) {
  int64_t vision = 0, text = 0;
  for (const TensorInfo& info : qwen().checkpoint.tensor_infos())
    (info.name.starts_with("visual.") ? vision : text) += info.bytes / 2 * 4;  // from bfloat16
  EXPECT_GT(vision, 0);
  EXPECT_EQ(vision_bytes(qwen().checkpoint, WeightMode::kFloat32), vision);
  EXPECT_EQ(weight_bytes(qwen().checkpoint, WeightMode::kFloat32), text);
}

TEST(Qwen3VlParity, a_tower_refuses_what_is_no_grid_of_patches) {
  const VisionTower& tower = *qwen().tower;
  EXPECT_NO_THROW(tower.encode(torch::zeros({4, 96}), {2, 2}));
  EXPECT_NO_THROW(tower.encode(torch::zeros({40, 96}), {2, 20}));
  EXPECT_THROW(tower.encode(torch::zeros({4, 96})), Error);
  EXPECT_THROW(tower.encode(torch::zeros({4, 96}), {1, 4}), Error);
  EXPECT_THROW(tower.encode(torch::zeros({4, 96}), {2, 4}), Error);
  EXPECT_THROW(tower.encode(torch::zeros({4, 96}), {-2, -2}), Error);
  EXPECT_THROW(tower.encode(torch::zeros({4, 95}), {2, 2}), Error);
  EXPECT_THROW(tower.encode(torch::zeros({3, 28, 28}), {2, 2}), Error);
  EXPECT_THROW(tower.encode(torch::zeros({4, 96}, torch::kDouble), {2, 2}), Error);
}

std::string refusal(const Json& patch) { return golden::refusal(golden::qwen_folder(), patch); }

TEST(Qwen3VlConfig, what_does_not_fit_is_named) {
  const auto says = [](const Json& patch, const char* text) {
    const std::string message = refusal(patch);
    EXPECT_NE(message.find(text), std::string::npos) << dump_json(patch) << ": " << message;
  };
  const auto vision = [](const char* key, const Json& value) {
    return Json{{"vision_config", {{key, value}}}};
  };
  const auto rope = [](const char* key, const Json& value) {
    return Json{{"text_config", {{"rope_parameters", {{key, value}}}}}};
  };
  EXPECT_EQ(refusal(Json::object()), "");
  says({{"text_config", 3}}, "text_config");
  says(vision("model_type", "siglip"), "siglip");
  says(vision("hidden_act", "relu"), "relu");
  says(vision("patch_size", 0), "patch_size");
  says(vision("num_heads", 3), "heads");
  says(vision("num_position_embeddings", 36), "pos_embed");
  says(vision("depth", 4), "blocks.3.");
  says(vision("depth", 2), "blocks.2.");
  says(vision("out_hidden_size", 48), "out_hidden_size");
  says(vision("deepstack_visual_indexes", {0, 3}), "deepstack_visual_indexes");
  says(vision("deepstack_visual_indexes", {1, 0}), "deepstack_visual_indexes");
  says(vision("deepstack_visual_indexes", 1), "deepstack_visual_indexes");
  says(vision("deepstack_visual_indexes", {0, 1, 2}), "deepstack_merger_list.2");
  says(vision("deepstack_visual_indexes", {0, 1, 2, 3}), "deepstack_layers");
  says({{"image_token_id", 264}}, "image_token_id");
  says(rope("mrope_section", {4, 2, 1}), "mrope_section");
  says(rope("mrope_section", {4, 2}), "mrope_section");
  says(rope("mrope_section", "x"), "mrope_section");
  says(rope("mrope_interleaved", false), "mrope_interleaved");
}

}  // namespace
}  // namespace coppice
