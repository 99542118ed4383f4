// What all image processors read of preprocessor_config.json. Internal to vision/.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "coppice/core/json.h"
#include "coppice/vision/image_processor.h"
#include "coppice/vision/resample.h"

namespace coppice::vision {

struct PixelSettings {
  bool do_resize = true;
  ResampleFilter filter = ResampleFilter::kBicubic;
  // [3][256]: what a pixel's value becomes, rescaled and normalised.
  std::array<std::array<float, 256>, 3> values;

  explicit PixelSettings(const Json& config);
};

// A whole number from 1 to `most`, or `missing` where the key is absent or null.
int64_t size_setting(const Json& config, const char* key, int64_t missing, int64_t most);
bool flag_setting(const Json& config, const char* key, bool missing);

std::unique_ptr<const ImageProcessor> make_clip_processor(const Json& config);
std::unique_ptr<const ImageProcessor> make_qwen_processor(const Json& config);

}  // namespace coppice::vision
