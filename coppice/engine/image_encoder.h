// Picture files to embeddings: decoding, the model's image processor, its vision tower.
//
// The same file is encoded once: what came of the last ones is kept, up to a bound. Thread-safe;
// one picture is encoded at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "coppice/engine/request.h"
#include "coppice/models/vision_tower.h"
#include "coppice/vision/image_processor.h"

namespace coppice {

class ImageEncoder final {
 public:
  static constexpr int64_t kKeptBytes = int64_t{128} << 20;

  ImageEncoder(std::unique_ptr<VisionTower> tower, std::unique_ptr<const ImageProcessor> processor,
               const PictureLimits& limits = {}, int64_t kept_bytes = kKeptBytes);
  // Null for a model without a vision side. Throws kNotFound for one without
  // preprocessor_config.json, and as load_vision and ImageProcessor do.
  static std::unique_ptr<ImageEncoder> load(const Checkpoint& checkpoint, WeightMode mode);

  struct Encoded {
    std::string hash;       // SHA-256 of the file
    at::Tensor embeddings;  // [n, W] float32, n >= 1; shared, never written
    PictureGrid grid = {};  // of its tokens; none: they stand in a line
  };
  // Throws as decode_picture and ImageProcessor::process.
  Encoded encode(std::span<const std::byte> file);

  int32_t image_token_id() const { return static_cast<int32_t>(tower_->image_token_id()); }
  int64_t encoded_pictures() const;  // those that were not there already

 private:
  const std::unique_ptr<VisionTower> tower_;
  const std::unique_ptr<const ImageProcessor> processor_;
  const PictureLimits limits_;
  const int64_t max_kept_bytes_;
  mutable std::mutex mutex_;
  std::list<Encoded> kept_;  // most recently used first
  int64_t kept_bytes_ = 0;
  int64_t encoded_ = 0;
};

// The prompt of `request` from `ids`, in which each image token stands for one of `pictures`, in
// order: it becomes as many tokens as the picture has embeddings, and a span. `first`: tokens that
// the sequence has before. Throws kInvalidArgument when the counts differ.
void set_prompt(Request& request, std::span<const int32_t> ids, int32_t image_token_id,
                std::span<const ImageEncoder::Encoded> pictures, int64_t first = 0);

}  // namespace coppice
