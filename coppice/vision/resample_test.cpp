// Resizing against Pillow, bit for bit (tools/make_picture_golden.py).
#include "coppice/vision/resample.h"

#include <gtest/gtest.h>

#include <map>

#include "coppice/core/error.h"
#include "coppice/vision/vision_testing.h"

namespace coppice {
namespace {

ResampleFilter filter_of(const std::string& name) {
  const std::map<std::string, ResampleFilter> filters = {{"bilinear", ResampleFilter::kBilinear},
                                                         {"bicubic", ResampleFilter::kBicubic},
                                                         {"lanczos", ResampleFilter::kLanczos}};
  return filters.at(name);
}

TEST(Resample, equals_pillow) {
  for (const Json& wanted : testing::golden_pictures()["resized"]) {
    const std::string name = wanted["source"];
    const std::string file = testing::golden_file(name);
    const Picture resized = resize_picture(
        decode_picture(testing::as_bytes(file)), wanted["width"].get<int64_t>(),
        wanted["height"].get<int64_t>(), filter_of(wanted["filter"].get<std::string>()));
    EXPECT_EQ(testing::largest_difference(resized.rgb, testing::pixels_of(wanted)), 0)
        << wanted["filter"] << " " << name << " to " << resized.width << " x " << resized.height;
  }
}

TEST(Resample, a_window_is_a_part_of_the_whole) {
  const std::string file = testing::golden_file("photo.png");
  const Picture picture = decode_picture(testing::as_bytes(file));
  for (const auto& [width, height] :
       {std::pair<int64_t, int64_t>{50, 12}, {37, 40}, {60, 21}, {20, 15}}) {
    const Picture whole = resize_picture(picture, width, height, ResampleFilter::kBicubic);
    const PixelWindow window{3, 2, width - 9, height - 5};
    const Picture part = resize_picture(picture, width, height, ResampleFilter::kBicubic, window);
    ASSERT_EQ(part.rgb.size(), static_cast<std::size_t>(window.width * window.height * 3));
    for (int64_t y = 0; y < window.height; ++y)
      for (int64_t x = 0; x < window.width * 3; ++x)
        ASSERT_EQ(part.rgb[y * window.width * 3 + x],
                  whole.rgb[((y + window.y) * width + window.x) * 3 + x]);
  }
}

// 336 x 3,360,000 pixels in whole.
TEST(Resample, I01_the_middle_of_a_long_picture_is_cheap) {
  const Picture picture{1, 10000, std::vector<uint8_t>(30000, 77)};
  const Picture middle =
      resize_picture(picture, 336, 3'360'000, ResampleFilter::kBicubic, {0, 1'679'832, 336, 336});
  EXPECT_EQ(middle.rgb, std::vector<uint8_t>(336 * 336 * 3, 77));
}

TEST(Resample, windows_outside_are_refused) {
  const Picture picture{2, 2, std::vector<uint8_t>(12, 0)};
  const auto resize = [&](int64_t width, const PixelWindow& window) {
    return resize_picture(picture, width, 4, ResampleFilter::kBicubic, window);
  };
  EXPECT_THROW(resize(0, {0, 0, 1, 1}), Error);
  EXPECT_THROW(resize(4, {0, 0, 0, 1}), Error);
  EXPECT_THROW(resize(4, {2, 0, 3, 1}), Error);
  EXPECT_THROW(resize(4, {-1, 0, 1, 1}), Error);
}

}  // namespace
}  // namespace coppice
