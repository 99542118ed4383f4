#include "coppice/vision/image_processor.h"

#include <cmath>
#include <string>

#include "coppice/core/error.h"
#include "coppice/vision/pixel_settings.h"

namespace coppice {
namespace vision {
namespace {

bool is_there(const Json& config, const char* key) {
  return config.contains(key) && !config[key].is_null();
}

[[noreturn]] void refuse(const char* key, const char* expected, const Json& got) {
  fail_argument("preprocessor_config.json: \"{}\" must be {}, got {}", key, expected,
                dump_json(got).substr(0, 60));
}

double number_setting(const Json& config, const char* key, double missing) {
  if (!is_there(config, key)) return missing;
  const Json& value = config[key];
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(key, "a number", value);
  return value.get<double>();
}

std::array<float, 3> three_setting(const Json& config, const char* key,
                                   const std::array<float, 3>& missing) {
  if (!is_there(config, key)) return missing;
  const Json& value = config[key];
  std::array<float, 3> result = {};
  if (!value.is_array() || value.size() != 3) refuse(key, "three numbers", value);
  for (std::size_t c = 0; c < 3; ++c) {
    if (!value[c].is_number()) refuse(key, "three numbers", value);
    result[c] = value[c].get<float>();
    if (!std::isfinite(result[c])) refuse(key, "three numbers", value);
  }
  return result;
}

}  // namespace

int64_t size_setting(const Json& config, const char* key, int64_t missing, int64_t most) {
  if (!is_there(config, key)) return missing;
  const Json& value = config[key];
  const bool whole = value.is_number_integer() && value >= 1 && value <= most;
  if (!whole) refuse(key, fmt::format("a whole number from 1 to {}", most).c_str(), value);
  return value.get<int64_t>();
}

bool flag_setting(const Json& config, const char* key, bool missing) {
  if (!is_there(config, key)) return missing;
  if (!config[key].is_boolean()) refuse(key, "true or false", config[key]);
  return config[key].get<bool>();
}

PixelSettings::PixelSettings(const Json& config) {
  for (const char* key : {"do_pad", "do_image_splitting", "do_flip_channel_order"})
    if (flag_setting(config, key, false)) refuse(key, "false", config[key]);
  do_resize = flag_setting(config, "do_resize", true);
  const int64_t chosen = size_setting(config, "resample", 3, 5);
  if (chosen > 3) refuse("resample", "1 (lanczos), 2 (bilinear) or 3 (bicubic)", chosen);
  filter = static_cast<ResampleFilter>(chosen);
  const double factor = flag_setting(config, "do_rescale", true)
                            ? number_setting(config, "rescale_factor", 1.0 / 255.0)
                            : 1.0;
  // CLIP's own statistics are the default of both families.
  std::array<float, 3> mean =
      three_setting(config, "image_mean", {0.48145466f, 0.4578275f, 0.40821073f});
  std::array<float, 3> deviation =
      three_setting(config, "image_std", {0.26862954f, 0.26130258f, 0.27577711f});
  if (!flag_setting(config, "do_normalize", true)) {
    mean = {0, 0, 0};
    deviation = {1, 1, 1};
  }
  for (std::size_t c = 0; c < 3; ++c) {
    if (deviation[c] == 0.0f) refuse("image_std", "other than 0", config["image_std"]);
    for (int value = 0; value < 256; ++value)
      values[c][value] = (static_cast<float>(value * factor) - mean[c]) / deviation[c];
  }
}

}  // namespace vision

std::unique_ptr<const ImageProcessor> ImageProcessor::from_config(const Json& config) {
  if (!config.is_object()) fail_argument("preprocessor_config.json: expected an object");
  std::string type;
  for (const char* key : {"image_processor_type", "feature_extractor_type"})
    if (type.empty() && config.contains(key) && config[key].is_string())
      type = config[key].get<std::string>();
  if (type == "CLIPImageProcessor" || type == "CLIPImageProcessorFast" ||
      type == "CLIPFeatureExtractor")
    return vision::make_clip_processor(config);
  if (type == "Qwen2VLImageProcessor" || type == "Qwen2VLImageProcessorFast")
    return vision::make_qwen_processor(config);
  fail_argument(
      "preprocessor_config.json: the image processor \"{}\" is not supported; supported are: "
      "CLIPImageProcessor, Qwen2VLImageProcessor",
      type);
}

}  // namespace coppice
