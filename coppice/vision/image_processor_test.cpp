// Processors against transformers' own (tools/make_processor_golden.py).
#include "coppice/vision/image_processor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "coppice/core/error.h"
#include "coppice/vision/vision_testing.h"

namespace coppice {
namespace {

const Json& golden() {
  static const Json cases = parse_json(testing::golden_file("processed.json"), "processed.json");
  return cases;
}

Picture read(const std::string& name) {
  const std::string file = testing::golden_file(name);
  return decode_picture(testing::as_bytes(file));
}

Picture plain(int64_t width, int64_t height) {
  return {width, height, std::vector<uint8_t>(static_cast<std::size_t>(width * height * 3), 90)};
}

TEST(ImageProcessor, I11_equals_the_reference) {
  ASSERT_GE(golden()["cases"].size(), 12u);
  for (const Json& wanted : golden()["cases"]) {
    SCOPED_TRACE(wanted["picture"].get<std::string>() + " " + dump_json(wanted["config"]));
    const auto processor = ImageProcessor::from_config(wanted["config"]);
    const VisionInput input = processor->process(read(wanted["picture"]));
    ASSERT_EQ(input.shape, wanted["shape"].get<std::vector<int64_t>>());
    const std::vector<int64_t> grid = {input.grid_height == 0 ? 0 : 1, input.grid_height,
                                       input.grid_width};
    EXPECT_EQ(grid, wanted.value("grid", std::vector<int64_t>{0, 0, 0}));
    const std::vector<uint8_t> bytes = testing::from_base64(wanted["values"]);
    ASSERT_EQ(bytes.size(), input.values.size() * sizeof(float));
    std::vector<float> values(input.values.size());
    std::memcpy(values.data(), bytes.data(), bytes.size());
    float largest = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      largest = std::max(largest, std::fabs(values[i] - input.values[i]));
    EXPECT_LE(largest, 1e-5f);
  }
}

TEST(ImageProcessor, I01_I02_sizes_equal_the_reference) {
  for (const Json& wanted : golden()["sizes"]) {
    const auto at = [&](std::size_t i) { return wanted[i].get<int64_t>(); };
    const PictureSize size = smart_resize(at(0), at(1), at(2), at(3), at(4));
    EXPECT_EQ(size.height, at(5)) << dump_json(wanted);
    EXPECT_EQ(size.width, at(6)) << dump_json(wanted);
    EXPECT_GE(std::min(size.height, size.width), at(2));
  }
}

TEST(ImageProcessor, I02_beyond_a_ratio_of_200_is_refused) {
  EXPECT_NO_THROW(smart_resize(200, 1, 28, 3136, 1003520));
  EXPECT_THROW(smart_resize(201, 1, 28, 3136, 1003520), Error);
  EXPECT_THROW(smart_resize(1, 10000, 28, 3136, 1003520), Error);
}

TEST(ImageProcessor, I01_I03_pictures_of_any_size_give_input) {
  const auto clip = ImageProcessor::from_config({{"image_processor_type", "CLIPImageProcessor"},
                                                 {"size", {{"shortest_edge", 336}}},
                                                 {"crop_size", {{"height", 336}, {"width", 336}}}});
  const auto qwen =
      ImageProcessor::from_config({{"image_processor_type", "Qwen2VLImageProcessor"}});
  for (const auto& [width, height] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 2}, {1, 100}, {305, 30}, {26, 28}, {1, 10000}, {10000, 1}}) {
    EXPECT_EQ(clip->process(plain(width, height)).shape, (std::vector<int64_t>{3, 336, 336}));
    if (std::max(width, height) > 200 * std::min(width, height)) continue;
    EXPECT_GE(qwen->process(plain(width, height)).shape[0], 4) << width << " x " << height;
  }
}

TEST(ImageProcessor, I10_a_picture_that_needs_no_resizing_keeps_its_pixels) {
  const auto clip = ImageProcessor::from_config(
      {{"image_processor_type", "CLIPImageProcessor"}, {"do_normalize", false}});
  for (const int64_t width : {224, 223, 256}) {
    Picture picture = plain(width, 224);
    picture.rgb[3 * (100 * width + 111)] = 255;
    const VisionInput input = clip->process(picture);
    const auto [least, most] = std::minmax_element(input.values.begin(), input.values.end());
    EXPECT_LT(*least, *most) << width;
    EXPECT_NEAR(input.values[0], 90.0f / 255, 1e-6f);
  }
}

TEST(ImageProcessor, what_is_not_known_is_refused_by_name) {
  const auto message = [](const Json& config) -> std::string {
    try {
      ImageProcessor::from_config(config);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto with = [](const char* key, const Json& value) {
    return Json{{"image_processor_type", "CLIPImageProcessor"}, {key, value}};
  };
  EXPECT_NE(message({{"image_processor_type", "Other"}}).find("\"Other\""), std::string::npos);
  EXPECT_NE(message(with("do_pad", true)).find("do_pad"), std::string::npos);
  EXPECT_NE(message(with("resample", 4)).find("resample"), std::string::npos);
  EXPECT_NE(message(with("image_mean", {1, 2})).find("image_mean"), std::string::npos);
  EXPECT_NE(message(with("image_std", {1, 0, 1})).find("image_std"), std::string::npos);
  EXPECT_NE(message(with("crop_size", {{"height", 0}})).find("height"), std::string::npos);
  EXPECT_NE(message(with("size", "big")).find("size"), std::string::npos);
  EXPECT_NE(message(Json::array()).find("object"), std::string::npos);
}

}  // namespace
}  // namespace coppice
