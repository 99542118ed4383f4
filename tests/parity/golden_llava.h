// The tiny LLaVA-1.5 of tools/make_llava_golden.py, its pictures and what transformers made of
// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coppice/core/mapped_file.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/models/vision_tower.h"
#include "coppice/vision/image_processor.h"
#include "tests/parity/golden_model.h"

namespace coppice::golden {

constexpr int64_t kLlavaImageTokens = 16;
constexpr int64_t kLlavaImageId = 258;

inline std::string llava_folder() { return folder("llava") + "/hf"; }

inline std::string picture_file(const std::string& name) {
  return read_text_file(std::string(COPPICE_SOURCE_DIR) + "/tests/golden/pictures/" + name);
}

struct LlavaCase {
  std::string name;
  std::vector<std::string> pictures;
};

inline const std::vector<LlavaCase>& llava_cases() {
  static const std::vector<LlavaCase> cases = {
      {"one", {"photo.png"}},
      {"several", {"progressive.jpg", "photo.png", "lossless.webp"}},
      {"text", {}},
      {"later", {"lossless.webp"}}};
  return cases;
}

// A folder's three parts.
struct Llava {
  Checkpoint checkpoint = Checkpoint::open(llava_folder());
  std::shared_ptr<Model> model = load_model(checkpoint, WeightMode::kFloat32);
  std::unique_ptr<VisionTower> tower = load_vision(checkpoint, WeightMode::kFloat32);
  std::unique_ptr<const ImageProcessor> processor =
      ImageProcessor::from_config(checkpoint.image_processor_config());

  at::Tensor pixels(const std::string& picture) const {
    const std::string file = picture_file(picture);
    VisionInput input = processor->process(decode_picture(std::as_bytes(std::span(file))));
    return torch::tensor(input.values).view(input.shape);
  }
  at::Tensor features(const std::string& picture) const { return tower->encode(pixels(picture)); }
};

}  // namespace coppice::golden
