// The decoders behind decode_picture, one file each. Internal to vision/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "coppice/vision/picture.h"

namespace coppice::vision {

// As a file stores it: not turned upright, transparency apart.
struct StoredPicture {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> rgba;   // [height, width, 4]
  bool premultiplied = false;  // colours are already weighted with alpha
  int orientation = 1;         // EXIF's 1 to 8
};

// Takes the memory of `stored`. Throws kCapacity beyond the limits, and kInvalidArgument for a
// picture without pixels.
void set_size(StoredPicture& stored, int64_t width, int64_t height, const PictureLimits& limits);

// All throw as decode_picture does. REQUIRES: picture_format() is theirs.
StoredPicture decode_png(std::span<const std::byte> file, const PictureLimits& limits);
StoredPicture decode_jpeg(std::span<const std::byte> file, const PictureLimits& limits);
StoredPicture decode_webp(std::span<const std::byte> file, const PictureLimits& limits);
StoredPicture decode_gif(std::span<const std::byte> file, const PictureLimits& limits);
StoredPicture decode_tiff(std::span<const std::byte> file, const PictureLimits& limits);

// The orientation in an EXIF block (a TIFF header and its first directory, after "Exif\0\0" where
// that stands). 1 where there is none or the block is damaged.
int exif_orientation(std::span<const std::byte> block);

}  // namespace coppice::vision
