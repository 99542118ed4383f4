#include "coppice/engine/image_encoder.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/sha256.h"
#include "coppice/loader/checkpoint.h"

namespace coppice {

ImageEncoder::ImageEncoder(std::unique_ptr<VisionTower> tower,
                           std::unique_ptr<const ImageProcessor> processor,
                           const PictureLimits& limits, int64_t kept_bytes)
    : tower_(std::move(tower)),
      processor_(std::move(processor)),
      limits_(limits),
      max_kept_bytes_(kept_bytes) {
  if (!tower_ || !processor_) fail_argument("image encoder: a tower and a processor are needed");
}

std::unique_ptr<ImageEncoder> ImageEncoder::load(const Checkpoint& checkpoint, WeightMode mode) {
  std::unique_ptr<VisionTower> tower = load_vision(checkpoint, mode);
  if (!tower) return nullptr;
  if (checkpoint.image_processor_config().is_null())
    fail(ErrorCode::kNotFound,
         "{}: has no preprocessor_config.json or processor_config.json, which pictures need",
         checkpoint.path());
  return std::make_unique<ImageEncoder>(
      std::move(tower), ImageProcessor::from_config(checkpoint.image_processor_config()));
}

ImageEncoder::Encoded ImageEncoder::encode(std::span<const std::byte> file) {
  const std::string hash = sha256_of(file);
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const Encoded& one) { return one.hash == hash; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front();
  }
  VisionInput input = processor_->process(decode_picture(file, limits_));
  const PictureGrid patches{input.grid_height, input.grid_width};
  Encoded encoded{
      hash, tower_->encode(at::from_blob(input.values.data(), input.shape, at::kFloat), patches),
      tower_->token_grid(patches)};
  COPPICE_CHECK(encoded.embeddings.size(0) > 0, "a vision tower gave no embeddings");
  ++encoded_;
  const auto bytes = [](const Encoded& one) {
    return static_cast<int64_t>(one.embeddings.nbytes());
  };
  kept_.push_front(encoded);
  kept_bytes_ += bytes(encoded);
  while (kept_bytes_ > max_kept_bytes_ && !kept_.empty()) {
    kept_bytes_ -= bytes(kept_.back());
    kept_.pop_back();
  }
  return encoded;
}

int64_t ImageEncoder::encoded_pictures() const {
  const std::lock_guard lock(mutex_);
  return encoded_;
}

void set_prompt(Request& request, std::span<const int32_t> ids, int32_t image_token_id,
                std::span<const ImageEncoder::Encoded> pictures, int64_t first) {
  const auto places = static_cast<std::size_t>(std::count(ids.begin(), ids.end(), image_token_id));
  if (places != pictures.size())
    fail_argument("the prompt has {} places for pictures, and {} pictures were given", places,
                  pictures.size());
  request.prompt.clear();
  request.images.clear();
  for (const int32_t id : ids) {
    int64_t copies = 1;
    if (id == image_token_id) {
      const ImageEncoder::Encoded& picture = pictures[request.images.size()];
      copies = picture.embeddings.size(0);
      request.images.push_back({.begin = first + static_cast<int64_t>(request.prompt.size()),
                                .tokens = copies,
                                .hash = picture.hash,
                                .embeddings = picture.embeddings,
                                .grid_height = picture.grid.height,
                                .grid_width = picture.grid.width});
    }
    request.prompt.insert(request.prompt.end(), static_cast<std::size_t>(copies), id);
  }
}

}  // namespace coppice
