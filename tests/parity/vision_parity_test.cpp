// LLaVA-1.5 from a folder, picture files included, against what transformers computed.
#include <gtest/gtest.h>

#include "coppice/core/error.h"
#include "tests/parity/changed_folder.h"
#include "tests/parity/golden_llava.h"

namespace coppice {
namespace {

using golden::Llava;
using golden::llava_cases;

constexpr double kTolerance = 1e-4;

at::Tensor wanted(const std::string& name) { return golden::expected("llava", name); }

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

const Llava& llava() {
  static const Llava loaded;
  return loaded;
}

// Text tokens embedded, pictures put where their tokens stand.
at::Tensor embeddings(const at::Tensor& ids, const std::vector<std::string>& pictures) {
  at::Tensor result = llava().model->embed(ids).clone();
  const at::Tensor places = (ids == golden::kLlavaImageId).nonzero().view({-1});
  std::vector<at::Tensor> features;
  for (const std::string& picture : pictures) features.push_back(llava().features(picture));
  if (!features.empty()) result.index_copy_(0, places, at::cat(features));
  return result;
}

at::Tensor hidden_of(const at::Tensor& ids, const std::vector<std::string>& pictures) {
  Batch batch = golden::single(ids);
  batch.embeddings = embeddings(ids, pictures);
  batch.token_ids = at::Tensor();
  DenseBackend backend;
  return llava().model->forward(batch, backend);
}

TEST(VisionParity, I11_pixels_and_features_equal_the_reference) {
  const torch::InferenceMode inference;
  for (const char* picture : {"photo.png", "progressive.jpg", "lossless.webp"}) {
    // A JPEG's pixels may differ by one step between versions of the library.
    const bool exact = std::string(picture) != "progressive.jpg";
    const at::Tensor pixels = wanted(std::string(picture) + ".pixels");
    EXPECT_LE(largest_difference(llava().pixels(picture), pixels), exact ? 1e-5 : 0.04) << picture;
    EXPECT_LE(largest_difference(llava().tower->encode(pixels),
                                 wanted(std::string(picture) + ".features")),
              kTolerance)
        << picture;
  }
}

TEST(VisionParity, logits_equal_the_reference) {
  const torch::InferenceMode inference;
  for (const auto& [name, pictures] : llava_cases()) {
    const at::Tensor hidden = hidden_of(wanted(name + ".prompt"), pictures);
    EXPECT_LE(largest_difference(llava().model->logits(hidden), wanted(name + ".logits")),
              kTolerance)
        << name;
  }
}

TEST(VisionParity, packed_weights_stay_close) {
  const torch::InferenceMode inference;
  const auto tower = load_vision(llava().checkpoint, WeightMode::kPacked);
  const at::Tensor features = wanted("photo.png.features");
  EXPECT_LE(largest_difference(tower->encode(wanted("photo.png.pixels")), features),
            0.05 * features.abs().max().item<double>());
}

TEST(VisionParity, planned_bytes_are_those_of_the_tensors) {
  int64_t values = 0;
  for (const TensorInfo& info : llava().checkpoint.tensor_infos()) {
    if (!info.name.starts_with("vision_tower") && !info.name.starts_with("multi_modal")) continue;
    values += info.bytes / 2;  // bfloat16
  }
  EXPECT_EQ(vision_bytes(llava().checkpoint, WeightMode::kFloat32), values * 4);
  EXPECT_EQ(vision_bytes(Checkpoint::open(golden::folder("llama") + "/hf"), WeightMode::kFloat32),
            0);
}

TEST(VisionParity, a_tower_refuses_other_sizes) {
  EXPECT_THROW(llava().tower->encode(torch::zeros({3, 28, 29})), Error);
  EXPECT_THROW(llava().tower->encode(torch::zeros({3, 14, 14})), Error);
  EXPECT_THROW(llava().tower->encode(torch::zeros({28, 28})), Error);
}

std::string refusal(const Json& patch) { return golden::refusal(golden::llava_folder(), patch); }

TEST(VisionConfig, what_does_not_fit_is_named) {
  const auto says = [](const Json& patch, const char* text) {
    const std::string message = refusal(patch);
    EXPECT_NE(message.find(text), std::string::npos) << dump_json(patch) << ": " << message;
  };
  EXPECT_EQ(refusal(Json::object()), "");
  says({{"text_config", 3}}, "text_config");
  says({{"text_config", {{"model_type", "mamba"}}}}, "mamba");
  says({{"vision_config", {{"model_type", "siglip_vision_model"}}}}, "siglip");
  says({{"vision_config", {{"hidden_act", "relu"}}}}, "relu");
  says({{"vision_config", {{"patch_size", 0}}}}, "patch_size");
  says({{"vision_config", {{"image_size", 35}}}}, "position_embedding");
  says({{"vision_config", {{"num_hidden_layers", 7}}}}, "layers.4.");
  says({{"vision_feature_layer", 9}}, "vision_feature_layer");
  says({{"vision_feature_select_strategy", "half"}}, "vision_feature_select_strategy");
  says({{"image_token_index", 260}}, "image_token_index");
  says({{"model_type", "llama"}}, "hidden_size");
}

TEST(VisionConfig, several_layers_side_by_side) {
  // Two layers need a projector twice as wide, which these weights are not.
  EXPECT_NE(refusal({{"vision_feature_layer", {-2, 1}}}).find("expected [32, 64]"),
            std::string::npos);
}

}  // namespace
}  // namespace coppice
