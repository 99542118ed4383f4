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

class VisionTower {
 public:
  virtual ~VisionTower() = default;
  // pixels, as the model's image processor gives one picture: [3, S, S] float32 -> [n, C] float32,
  // n tokens in the order in which the text model reads them. Throws kInvalidArgument on another
  // shape. Without gradients; one thread at a time.
  virtual at::Tensor encode(const at::Tensor& pixels) const = 0;

  // The token of the vocabulary that stands for a picture in prompts.
  int64_t image_token_id() const { return image_token_id_; }

 protected:
  explicit VisionTower(int64_t image_token_id) : image_token_id_(image_token_id) {}

 private:
  int64_t image_token_id_;
};

// Null for a checkpoint without a vision side. Matrices are packed or float32 as the text model's.
// Throws as load_model does.
std::unique_ptr<VisionTower> load_vision(const Checkpoint& checkpoint, WeightMode mode);

// Bytes that load_vision will hold, from the header alone (for `plan`).
int64_t vision_bytes(const Checkpoint& checkpoint, WeightMode mode);

}  // namespace coppice
