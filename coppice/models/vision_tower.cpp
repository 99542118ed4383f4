#include "coppice/models/vision_tower.h"

#include "coppice/core/error.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/loader/vision_names.h"
#include "coppice/loader/weight_loader.h"
#include "coppice/models/vision_towers.h"

namespace coppice {

std::unique_ptr<VisionTower> load_vision(const Checkpoint& checkpoint, WeightMode mode) {
  const Json& config = checkpoint.vision_config();
  if (config.is_null()) return nullptr;
  if (mode == WeightMode::kBFloat16)
    fail_argument("vision tower: weights are float32 or packed, not bfloat16");
  WeightLoader loader(checkpoint);
  for (const std::string& name : checkpoint.names())
    if (!is_vision_tensor(name)) loader.ignore(name);
  const ModelArgs text = ModelArgs::from_config(checkpoint.config());
  const bool qwen = config.value("model_type", Json()) == "qwen3_vl";
  std::unique_ptr<VisionTower> tower =
      (qwen ? models::make_qwen3_vl_tower : models::make_llava_tower)(config, text, loader, mode);
  loader.finish();
  return tower;
}

int64_t vision_bytes(const Checkpoint& checkpoint, WeightMode mode) {
  if (checkpoint.vision_config().is_null()) return 0;
  int64_t bytes = 0;
  for (const TensorInfo& info : checkpoint.tensor_infos())
    if (is_vision_tensor(info.name)) bytes += tensor_bytes(info, mode);
  return bytes;
}

}  // namespace coppice
