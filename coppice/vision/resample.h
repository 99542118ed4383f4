// Resizing as Pillow does it: separable filters that widen when a picture shrinks (so nothing is
// skipped), weights rounded to 22 bits, 8-bit pixels between the two passes. Equal to Pillow's
// Image.resize bit for bit (version 13), on which the reference image processors stand.
//
// Only a window of the result is computed, and only the pixels that it needs: the middle of a very
// long and thin picture costs what the middle costs.
#pragma once

#include <cstdint>

#include "coppice/vision/picture.h"

namespace coppice {

// Values are those of "resample" in preprocessor_config.json.
enum class ResampleFilter : uint8_t { kLanczos = 1, kBilinear = 2, kBicubic = 3 };

struct PixelWindow {
  int64_t x = 0, y = 0;
  int64_t width = 0, height = 0;
};

// `window` of `picture` resized to width x height. Throws kInvalidArgument for a size below 1 or a
// window that is empty or reaches out of it.
Picture resize_picture(const Picture& picture, int64_t width, int64_t height, ResampleFilter filter,
                       const PixelWindow& window);
Picture resize_picture(const Picture& picture, int64_t width, int64_t height,
                       ResampleFilter filter);

}  // namespace coppice
