// CLIP's image processor, which LLaVA uses.
#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/vision/pixel_settings.h"

namespace coppice::vision {
namespace {

constexpr int64_t kMaxSide = 8192;

// Floor of a / b, b > 0, as Python divides.
int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

class ClipProcessor final : public ImageProcessor {
 public:
  explicit ClipProcessor(const Json& config) : pixels_(config) {
    if (pixels_.do_resize) read_size(config);
    do_crop_ = flag_setting(config, "do_center_crop", true);
    if (do_crop_) crop_ = sides(config, "crop_size", 224);
    if (!do_crop_ && shortest_ > 0)
      fail_argument(
          "preprocessor_config.json: without do_center_crop, \"size\" must give height and width");
    if (!do_crop_ && !pixels_.do_resize)
      fail_argument("preprocessor_config.json: one of do_resize and do_center_crop must be true");
  }

  VisionInput process(const Picture& picture) const override {
    const PictureSize resized = resized_of(picture);
    const PictureSize out = do_crop_ ? crop_ : resized;
    // Where the result lies in the resized picture; it may reach out of it.
    const int64_t top = floor_divide(resized.height - out.height, 2);
    const int64_t left = floor_divide(resized.width - out.width, 2);
    PixelWindow window{std::max<int64_t>(left, 0), std::max<int64_t>(top, 0), 0, 0};
    window.width = std::min(resized.width, left + out.width) - window.x;
    window.height = std::min(resized.height, top + out.height) - window.y;
    return frame(resize_picture(picture, resized.width, resized.height, pixels_.filter, window),
                 out, window.y - top, window.x - left);
  }

 private:
  static PictureSize sides(const Json& config, const char* key, int64_t missing) {
    if (!config.contains(key) || config[key].is_null()) return {missing, missing};
    if (config[key].is_object())
      return {size_setting(config[key], "height", missing, kMaxSide),
              size_setting(config[key], "width", missing, kMaxSide)};
    const int64_t side = size_setting(config, key, missing, kMaxSide);
    return {side, side};
  }

  void read_size(const Json& config) {
    const Json size = config.value("size", Json());
    if (size.is_object() && size.contains("height")) {
      size_ = sides(config, "size", 224);
    } else if (size.is_object()) {
      shortest_ = size_setting(size, "shortest_edge", 224, kMaxSide);
      if (size.contains("longest_edge"))
        fail_argument("preprocessor_config.json: size.longest_edge is not supported");
    } else {
      shortest_ = size_setting(config, "size", 224, kMaxSide);
    }
  }

  PictureSize resized_of(const Picture& picture) const {
    if (!pixels_.do_resize) return {picture.height, picture.width};
    if (shortest_ == 0) return size_;
    const int64_t shorter = std::min(picture.width, picture.height);
    const int64_t longer = shortest_ * std::max(picture.width, picture.height) / shorter;
    return picture.width <= picture.height ? PictureSize{longer, shortest_}
                                           : PictureSize{shortest_, longer};
  }

  // The middle of the picture, with black around it where it is too small.
  VisionInput frame(const Picture& part, const PictureSize& out, int64_t top, int64_t left) const {
    VisionInput input;
    input.shape = {3, out.height, out.width};
    input.values.resize(static_cast<std::size_t>(3 * out.height * out.width));
    float* plane = input.values.data();
    for (std::size_t c = 0; c < 3; ++c, plane += out.height * out.width) {
      std::fill_n(plane, out.height * out.width, pixels_.values[c][0]);
      for (int64_t y = 0; y < part.height; ++y)
        for (int64_t x = 0; x < part.width; ++x)
          plane[(top + y) * out.width + left + x] =
              pixels_.values[c][part.rgb[(y * part.width + x) * 3 + c]];
    }
    return input;
  }

  PixelSettings pixels_;
  int64_t shortest_ = 0;  // 0: both sides are given
  PictureSize size_;
  bool do_crop_ = true;
  PictureSize crop_;
};

}  // namespace

std::unique_ptr<const ImageProcessor> make_clip_processor(const Json& config) {
  return std::make_unique<ClipProcessor>(config);
}

}  // namespace coppice::vision
