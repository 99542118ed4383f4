// Pixels to what a vision tower reads, as a model folder's preprocessor_config.json says.
//
// Two kinds, equal to the reference processors (transformers, on Pillow) to 1e-5:
//   CLIP      CLIPImageProcessor: shortest side (or both) resized, the middle cut out, smaller
//             pictures framed in black. Of what would be cut away nothing is computed.
//   Qwen      Qwen2VLImageProcessor: both sides rounded to whole groups of patches within the
//             smallest and largest number of pixels (smart_resize), then cut into patches.
// A setting that would change the pixels and is not known here is refused by name.
// Immutable and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/vision/picture.h"

namespace coppice {

struct VisionInput {
  // CLIP: [3, height, width]. Qwen: [grid_height x grid_width, 3 x temporal patch x patch x patch],
  // the patches that are merged into one token beside each other, tokens row by row.
  std::vector<float> values;
  std::vector<int64_t> shape;
  int64_t grid_height = 0;  // in patches; 0 for CLIP
  int64_t grid_width = 0;
};

class ImageProcessor {
 public:
  virtual ~ImageProcessor() = default;
  // Throws kInvalidArgument naming the key that is missing, out of range or not supported.
  static std::unique_ptr<const ImageProcessor> from_config(const Json& config);

  // Throws kInvalidArgument for a picture that the processor cannot take: for Qwen, one side more
  // than 200 times the other.
  virtual VisionInput process(const Picture& picture) const = 0;
};

// The size that Qwen's processors resize to. Throws as process().
struct PictureSize {
  int64_t height = 0, width = 0;
};
PictureSize smart_resize(int64_t height, int64_t width, int64_t factor, int64_t min_pixels,
                         int64_t max_pixels);

}  // namespace coppice
