// Picture files to pixels: PNG, JPEG, WebP, GIF and TIFF, by content and never by name.
//
// The result is upright 8-bit RGB, as Pillow gives it:
//   - EXIF (and TIFF) orientation is applied; a damaged EXIF block is passed over;
//   - transparent pixels lie on white;
//   - of 16-bit samples the high byte counts; grey, palette and CMYK become RGB (CMYK JPEGs are
//     read as inverted, as Adobe writes them; no colour profile is applied);
//   - of an animated or many-paged file the first frame counts.
// Hostile files: sizes are checked before pixels are decoded, so no file takes more than about 15
// bytes a pixel of `PictureLimits::max_pixels`; truncated ones are refused, not half decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

struct Picture {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
};

enum class PictureFormat : uint8_t { kUnknown, kPng, kJpeg, kWebp, kGif, kTiff };

// From the first bytes alone.
PictureFormat picture_format(std::span<const std::byte> file);

struct PictureLimits {
  int64_t max_bytes = int64_t{64} << 20;  // of the file
  int64_t max_pixels = 50'000'000;        // width x height
};

// Throws kInvalidArgument for what is no picture, one of another format, or a damaged one;
// kCapacity for one beyond the limits. Thread-safe.
Picture decode_picture(std::span<const std::byte> file, const PictureLimits& limits = {});

}  // namespace coppice
