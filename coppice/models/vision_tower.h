// The vision side of a vision-language model: processed pixels in, embeddings of the text model's
// width out. What those embeddings then are, in cache and policies, is the text model's business:
// they stand in a Batch as any other token does.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "coppice/models/load.h"

namespace coppice {

// Rows and columns of a picture whose size the model leaves open; none where it is fixed.
struct PictureGrid {
  int64_t height = 0, width = 0;
};

class VisionTower {
 public:
  virtual ~VisionTower() = default;
  // pixels, as the model's image processor gives one picture: [3, S, S] float32, or patches
  // [height x width, P] float32 of a grid -> [n, W] float32, n tokens in the order in which the
  // text model reads them, W its embedding_width(). Throws kInvalidArgument on another shape.
  // Without gradients; one thread at a time.
  virtual at::Tensor encode(const at::Tensor& pixels, const PictureGrid& grid) const = 0;
  at::Tensor encode(const at::Tensor& pixels) const { return encode(pixels, {}); }

  // How the tokens of a picture of `patches` stand for the text model's positions: token i in row
  // i / width. None: in a line.
  PictureGrid token_grid(const PictureGrid& patches) const {
    return {patches.height / merge_size_, patches.width / merge_size_};
  }

  // The token of the vocabulary that stands for a picture in prompts.
  int64_t image_token_id() const { return image_token_id_; }

 protected:
  // Each token joins merge_size x merge_size patches.
  explicit VisionTower(int64_t image_token_id, int64_t merge_size = 1)
      : image_token_id_(image_token_id), merge_size_(merge_size) {}

 private:
  int64_t image_token_id_, merge_size_;
};

// Null for a checkpoint without a vision side. Matrices are packed or float32 as the text model's.
// Throws as load_model does.
std::unique_ptr<VisionTower> load_vision(const Checkpoint& checkpoint, WeightMode mode);

// Bytes that load_vision will hold, from the header alone (for `plan`).
int64_t vision_bytes(const Checkpoint& checkpoint, WeightMode mode);

}  // namespace coppice
