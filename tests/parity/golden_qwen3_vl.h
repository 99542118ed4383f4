// The tiny Qwen3-VL of tools/make_qwen3_vl_golden.py, its pictures and what transformers made of
// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/parity/golden_llava.h"

namespace coppice::golden {

constexpr int64_t kQwenImageId = 256 + 5;

inline std::string qwen_folder() { return folder("qwen3-vl") + "/hf"; }

inline const std::vector<LlavaCase>& qwen_cases() {
  static const std::vector<LlavaCase> cases = {{"one", {"photo.png"}},
                                               {"several", {"RGB.png", "photo.png", "rgb444.jpg"}},
                                               {"text", {}},
                                               {"later", {"lossless.webp"}},
                                               {"turns", {"rgb444.jpg", "RGB.png"}}};
  return cases;
}

inline at::Tensor qwen_expected(const std::string& name) { return expected("qwen3-vl", name); }

// Back to one token for each picture: only the first of neighbours stays.
inline std::vector<int32_t> with_one_token_a_picture(const std::vector<int64_t>& ids,
                                                     int64_t image_id) {
  std::vector<int32_t> result;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] != image_id || i == 0 || ids[i - 1] != image_id)
      result.push_back(static_cast<int32_t>(ids[i]));
  return result;
}

// A folder's three parts.
struct Qwen {
  Checkpoint checkpoint = Checkpoint::open(qwen_folder());
  std::shared_ptr<Model> model = load_model(checkpoint, WeightMode::kFloat32);
  std::unique_ptr<VisionTower> tower = load_vision(checkpoint, WeightMode::kFloat32);
  std::unique_ptr<const ImageProcessor> processor =
      ImageProcessor::from_config(checkpoint.image_processor_config());

  VisionInput input(const std::string& picture) const {
    const std::string file = picture_file(picture);
    return processor->process(decode_picture(std::as_bytes(std::span(file))));
  }
  // [n, C + DeepStack's]
  at::Tensor features(const std::string& picture) const {
    VisionInput in = input(picture);
    return tower->encode(torch::tensor(in.values).view(in.shape), {in.grid_height, in.grid_width});
  }
};

}  // namespace coppice::golden
