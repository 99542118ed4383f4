// Pictures against what Pillow reads from the same files (tools/make_picture_golden.py), and files
// that want harm.
#include "coppice/vision/picture.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>

#include "coppice/core/error.h"
#include "coppice/vision/vision_testing.h"

namespace coppice {
namespace {

using testing::as_bytes;
using testing::golden_file;
using testing::golden_pictures;
using testing::largest_difference;

class GoldenPicture : public ::testing::TestWithParam<Json> {};

TEST_P(GoldenPicture, equals_pillow) {
  const Json& wanted = GetParam();
  const std::string file = golden_file(wanted["name"].get<std::string>());
  const Picture picture = decode_picture(as_bytes(file));
  ASSERT_EQ(picture.width, wanted["width"].get<int64_t>());
  ASSERT_EQ(picture.height, wanted["height"].get<int64_t>());
  EXPECT_LE(largest_difference(picture.rgb, testing::pixels_of(wanted)),
            wanted["tolerance"].get<int>());
}

TEST_P(GoldenPicture, every_beginning_of_it_is_refused_or_read) {
  const std::string file = golden_file(GetParam()["name"].get<std::string>());
  const std::size_t step = std::max<std::size_t>(1, file.size() / 97);
  for (std::size_t bytes = 0; bytes < file.size(); bytes += step) {
    const std::string part = file.substr(0, bytes);
    try {
      decode_picture(as_bytes(part));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    }
  }
  // Half of the pixels is not a picture; half of an animation holds its first frame.
  if (GetParam()["name"].get<std::string>().starts_with("animated")) return;
  EXPECT_THROW(decode_picture(as_bytes(file.substr(0, file.size() / 2))), Error);
}

// The row of known faults that a file stands for.
std::string fault_of(const std::string& name) {
  for (const auto& [part, fault] : {std::pair{"orientation", "I05_"},
                                    {"damaged_exif", "I05_"},
                                    {"cmyk", "I06_"},
                                    {"16", "I07_"},
                                    {"palette1", "I07_"},
                                    {"webp", "I08_"},
                                    {"animated", "I08_"}})
    if (name.find(part) != std::string::npos) return fault;
  return "";
}

INSTANTIATE_TEST_SUITE_P(All, GoldenPicture, ::testing::ValuesIn(golden_pictures()["files"]),
                         [](const ::testing::TestParamInfo<Json>& info) {
                           std::string name = info.param["name"];
                           for (char& c : name)
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           return fault_of(name) + name + "_" + std::to_string(info.index);
                         });

std::string big_endian(uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
  return text;
}

std::string chunk(const std::string& kind, const std::string& data) {
  const std::string body = kind + data;
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(body.data()), body.size());
  return big_endian(static_cast<uint32_t>(data.size())) + body +
         big_endian(static_cast<uint32_t>(sum));
}

// A PNG of one colour: a few kilobytes for any size.
std::string bomb(uint32_t side) {
  const std::string rows((std::size_t{side} / 8 + 1) * side, '\0');
  std::string packed(compressBound(rows.size()), '\0');
  uLongf bytes = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &bytes,
           reinterpret_cast<const Bytef*>(rows.data()), rows.size());
  packed.resize(bytes);
  return std::string("\x89PNG\r\n\x1A\n", 8) +
         chunk("IHDR", big_endian(side) + big_endian(side) + std::string("\1\0\0\0\0", 5)) +
         chunk("IDAT", packed) + chunk("IEND", "");
}

ErrorCode code_of(const std::string& file, const PictureLimits& limits = {}) {
  try {
    decode_picture(as_bytes(file), limits);
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "it was read";
  return ErrorCode::kInternal;
}

TEST(Picture, I05_red_is_where_the_camera_saw_it) {
  struct Case {
    const char* name;
    int64_t width, red_x, red_y, green_x, green_y;
  };
  for (const auto& [name, width, red_x, red_y, green_x, green_y] :
       {Case{"orientation1.jpg", 16, 1, 4, 14, 4}, Case{"orientation3.jpg", 16, 14, 4, 1, 4},
        Case{"orientation6.jpg", 8, 4, 1, 4, 14}, Case{"orientation8.jpg", 8, 4, 14, 4, 1},
        Case{"damaged-exif.jpg", 16, 1, 4, 14, 4}}) {
    const std::string file = golden_file(name);
    const Picture picture = decode_picture(as_bytes(file));
    ASSERT_EQ(picture.width, width) << name;
    const auto at = [&](int64_t x, int64_t y) { return &picture.rgb[(y * width + x) * 3]; };
    EXPECT_GT(at(red_x, red_y)[0], 200) << name;
    EXPECT_LT(at(red_x, red_y)[1], 60) << name;
    EXPECT_GT(at(green_x, green_y)[1], 200) << name;
    EXPECT_LT(at(green_x, green_y)[0], 60) << name;
  }
}

TEST(Picture, I04_a_bomb_is_refused_before_it_is_decoded) {
  const std::string file = bomb(20000);
  EXPECT_LT(file.size(), 100'000u);
  EXPECT_EQ(code_of(file), ErrorCode::kCapacity);
  EXPECT_EQ(code_of(bomb(64), {.max_pixels = 64 * 64 - 1}), ErrorCode::kCapacity);
  EXPECT_EQ(decode_picture(as_bytes(bomb(64)), {.max_pixels = 64 * 64}).width, 64);
  EXPECT_EQ(code_of(golden_file("RGB.png"), {.max_bytes = 100}), ErrorCode::kCapacity);
  for (const char* name :
       {"RGB.jpg", "lossy.webp", "lossless.webp", "animated.webp", "P.gif", "RGB.tif", "RGB.png"})
    EXPECT_EQ(code_of(golden_file(name), {.max_pixels = 12}), ErrorCode::kCapacity) << name;
}

TEST(Picture, I08_content_decides_and_what_is_not_read_is_refused_by_name) {
  const std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1\" height=\"1\"/>";
  const std::string heic(
      "\0\0\0\x18"
      "ftypheic\0\0\0\0mif1heic",
      24);
  for (const std::string& file :
       {svg, heic, std::string("hello"), std::string(), std::string("BM")})
    EXPECT_EQ(code_of(file), ErrorCode::kInvalidArgument);
  try {
    decode_picture(as_bytes(svg));
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("expected PNG, JPEG, WebP, GIF or TIFF"),
              std::string::npos);
  }
  EXPECT_EQ(picture_format(as_bytes(golden_file("P.gif"))), PictureFormat::kGif);
}

TEST(Picture, I01_a_picture_without_pixels_is_refused) {
  const std::string file =
      std::string("\x89PNG\r\n\x1A\n", 8) +
      chunk("IHDR", big_endian(0) + big_endian(5) + std::string("\1\0\0\0\0", 5));
  EXPECT_EQ(code_of(file), ErrorCode::kInvalidArgument);
  std::string gif = golden_file("P.gif");
  gif[6] = gif[7] = 0;  // the canvas's width
  EXPECT_EQ(code_of(gif), ErrorCode::kInvalidArgument);
}

TEST(Picture, I04_a_jpeg_of_endless_scans_is_refused) {
  const std::string file = golden_file("progressive.jpg");
  const std::size_t last = file.rfind("\xFF\xDA");
  std::string many = file.substr(0, file.size() - 2);
  for (int i = 0; i < 300; ++i) many += file.substr(last, file.size() - 2 - last);
  EXPECT_EQ(code_of(many + "\xFF\xD9"), ErrorCode::kCapacity);
}

}  // namespace
}  // namespace coppice
