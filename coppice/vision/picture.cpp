#include "coppice/vision/picture.h"

#include <string_view>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/vision/decoders.h"

namespace coppice {
namespace vision {

void set_size(StoredPicture& stored, int64_t width, int64_t height, const PictureLimits& limits) {
  if (width < 1 || height < 1)
    fail_argument("picture: expected a width and a height of 1 or more, got {} x {}", width,
                  height);
  if (width > limits.max_pixels / height)
    fail(ErrorCode::kCapacity, "picture: expected at most {} pixels, got {} x {}",
         limits.max_pixels, width, height);
  stored.width = width;
  stored.height = height;
  stored.rgba.assign(static_cast<std::size_t>(width * height * 4), 0);
}

namespace {

bool has(std::span<const std::byte> file, std::size_t at, std::string_view text) {
  if (file.size() < at + text.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (std::to_integer<char>(file[at + i]) != text[i]) return false;
  return true;
}

StoredPicture decode_stored(std::span<const std::byte> file, const PictureLimits& limits) {
  switch (picture_format(file)) {
    case PictureFormat::kPng:
      return decode_png(file, limits);
    case PictureFormat::kJpeg:
      return decode_jpeg(file, limits);
    case PictureFormat::kWebp:
      return decode_webp(file, limits);
    case PictureFormat::kGif:
      return decode_gif(file, limits);
    case PictureFormat::kTiff:
      return decode_tiff(file, limits);
    case PictureFormat::kUnknown:
      break;
  }
  fail_argument(
      "picture: the {} bytes are no picture of a format that is read; expected PNG, JPEG, WebP, "
      "GIF or TIFF",
      file.size());
}

// value / 255, rounded, for value up to 255 * 255.
uint32_t divide_by_255(uint32_t value) {
  const uint32_t rounded = value + 128;
  return (rounded + (rounded >> 8)) >> 8;
}

// Pixel (x, y) of the upright picture is pixel `source` of the stored one, of size w x h.
int64_t source_of(int orientation, int64_t x, int64_t y, int64_t w, int64_t h) {
  switch (orientation) {
    case 2:
      return y * w + (w - 1 - x);
    case 3:
      return (h - 1 - y) * w + (w - 1 - x);
    case 4:
      return (h - 1 - y) * w + x;
    case 5:
      return x * w + y;
    case 6:
      return (h - 1 - x) * w + y;
    case 7:
      return (h - 1 - x) * w + (w - 1 - y);
    case 8:
      return x * w + (w - 1 - y);
    default:
      return y * w + x;
  }
}

// One pixel on white.
void put_on_white(const uint8_t* rgba, bool premultiplied, uint8_t* rgb) {
  const uint32_t alpha = rgba[3];
  for (int c = 0; c < 3; ++c) {
    const uint32_t white = 255 - alpha;
    const uint32_t mixed =
        premultiplied ? rgba[c] + white : divide_by_255(255 * white + rgba[c] * alpha);
    rgb[c] = static_cast<uint8_t>(mixed > 255 ? 255 : mixed);
  }
}

}  // namespace
}  // namespace vision

PictureFormat picture_format(std::span<const std::byte> file) {
  using std::string_view;
  if (vision::has(file, 0, "\x89PNG\r\n\x1A\n")) return PictureFormat::kPng;
  if (vision::has(file, 0, "\xFF\xD8\xFF")) return PictureFormat::kJpeg;
  if (vision::has(file, 0, "RIFF") && vision::has(file, 8, "WEBP")) return PictureFormat::kWebp;
  if (vision::has(file, 0, "GIF87a") || vision::has(file, 0, "GIF89a")) return PictureFormat::kGif;
  if (vision::has(file, 0, string_view("II*\0", 4)) ||
      vision::has(file, 0, string_view("MM\0*", 4)))
    return PictureFormat::kTiff;
  return PictureFormat::kUnknown;
}

Picture decode_picture(std::span<const std::byte> file, const PictureLimits& limits) {
  if (static_cast<int64_t>(file.size()) > limits.max_bytes)
    fail(ErrorCode::kCapacity, "picture: expected a file of at most {} bytes, got {}",
         limits.max_bytes, file.size());
  const vision::StoredPicture stored = vision::decode_stored(file, limits);
  const bool turned = stored.orientation >= 5;
  Picture picture;
  picture.width = turned ? stored.height : stored.width;
  picture.height = turned ? stored.width : stored.height;
  picture.rgb.resize(static_cast<std::size_t>(picture.width * picture.height * 3));
  uint8_t* to = picture.rgb.data();
  for (int64_t y = 0; y < picture.height; ++y)
    for (int64_t x = 0; x < picture.width; ++x, to += 3)
      vision::put_on_white(stored.rgba.data() + 4 * vision::source_of(stored.orientation, x, y,
                                                                      stored.width, stored.height),
                           stored.premultiplied, to);
  return picture;
}

}  // namespace coppice
