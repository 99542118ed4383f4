// The image processor of Qwen2-VL and its successors.
#include <algorithm>
#include <cmath>

#include "coppice/core/error.h"
#include "coppice/vision/pixel_settings.h"

namespace coppice {
namespace {

// To the nearest whole number, halves to the even one.
int64_t round_to_even(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

}  // namespace

PictureSize smart_resize(int64_t height, int64_t width, int64_t factor, int64_t min_pixels,
                         int64_t max_pixels) {
  constexpr double kMaxRatio = 200.0;
  const auto h = static_cast<double>(height), w = static_cast<double>(width);
  if (std::max(h, w) / std::min(h, w) > kMaxRatio)
    fail_argument("picture: expected the longer side at most {} times the shorter, got {} x {}",
                  kMaxRatio, width, height);
  const auto unit = static_cast<double>(factor);
  PictureSize size{round_to_even(h / unit) * factor, round_to_even(w / unit) * factor};
  if (size.height * size.width > max_pixels) {
    const double shrink = std::sqrt(h * w / static_cast<double>(max_pixels));
    const auto fit = [&](double side) {
      return std::max(factor, static_cast<int64_t>(std::floor(side / shrink / unit)) * factor);
    };
    return {fit(h), fit(w)};
  }
  if (size.height * size.width < min_pixels) {
    const double grow = std::sqrt(static_cast<double>(min_pixels) / (h * w));
    const auto fit = [&](double side) {
      return static_cast<int64_t>(std::ceil(side * grow / unit)) * factor;
    };
    return {fit(h), fit(w)};
  }
  return size;
}

namespace vision {
namespace {

class QwenProcessor final : public ImageProcessor {
 public:
  explicit QwenProcessor(const Json& config) : pixels_(config) {
    constexpr int64_t kMaxPatch = 256, kMaxPixels = int64_t{1} << 26;
    patch_ = size_setting(config, "patch_size", 14, kMaxPatch);
    temporal_ = size_setting(config, "temporal_patch_size", 2, 16);
    merge_ = size_setting(config, "merge_size", 2, 16);
    const Json size =
        config.contains("size") && config["size"].is_object() ? config["size"] : Json::object();
    min_pixels_ = size_setting(size, "shortest_edge", 56 * 56, kMaxPixels);
    max_pixels_ = size_setting(size, "longest_edge", 28 * 28 * 1280, kMaxPixels);
    min_pixels_ = size_setting(config, "min_pixels", min_pixels_, kMaxPixels);
    max_pixels_ = size_setting(config, "max_pixels", max_pixels_, kMaxPixels);
    if (min_pixels_ > max_pixels_)
      fail_argument("preprocessor_config.json: min_pixels {} is above max_pixels {}", min_pixels_,
                    max_pixels_);
    if (!pixels_.do_resize) fail_argument("preprocessor_config.json: do_resize must be true");
  }

  VisionInput process(const Picture& picture) const override {
    const PictureSize size =
        smart_resize(picture.height, picture.width, patch_ * merge_, min_pixels_, max_pixels_);
    return patches(resize_picture(picture, size.width, size.height, pixels_.filter));
  }

 private:
  // One patch is channel, time (the picture stands still), row, column.
  void put_patch(const Picture& picture, int64_t top, int64_t left, float*& to) const {
    for (std::size_t c = 0; c < 3; ++c)
      for (int64_t t = 0; t < temporal_; ++t)
        for (int64_t y = top; y < top + patch_; ++y)
          for (int64_t x = left; x < left + patch_; ++x)
            *to++ = pixels_.values[c][picture.rgb[(y * picture.width + x) * 3 + c]];
  }

  VisionInput patches(const Picture& picture) const {
    VisionInput input;
    input.grid_height = picture.height / patch_;
    input.grid_width = picture.width / patch_;
    input.shape = {input.grid_height * input.grid_width, 3 * temporal_ * patch_ * patch_};
    input.values.resize(static_cast<std::size_t>(input.shape[0] * input.shape[1]));
    float* to = input.values.data();
    for (int64_t y = 0; y < input.grid_height; y += merge_)
      for (int64_t x = 0; x < input.grid_width; x += merge_)
        for (int64_t dy = 0; dy < merge_; ++dy)
          for (int64_t dx = 0; dx < merge_; ++dx)
            put_patch(picture, (y + dy) * patch_, (x + dx) * patch_, to);
    return input;
  }

  PixelSettings pixels_;
  int64_t patch_, temporal_, merge_, min_pixels_, max_pixels_;
};

}  // namespace

std::unique_ptr<const ImageProcessor> make_qwen_processor(const Json& config) {
  return std::make_unique<QwenProcessor>(config);
}

}  // namespace vision
}  // namespace coppice
