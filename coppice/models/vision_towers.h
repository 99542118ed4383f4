// The constructors of all vision towers, each defined in the file that bears its name.
#pragma once

#include <memory>

#include "coppice/core/json.h"
#include "coppice/models/model_args.h"
#include "coppice/models/vision_tower.h"

namespace coppice {
class WeightLoader;
}

namespace coppice::models {

// `config`: Checkpoint::vision_config(). Takes its weights from `loader`, whose finish() the caller
// calls.
std::unique_ptr<VisionTower> make_llava_tower(const Json& config, const ModelArgs& text,
                                              WeightLoader& loader, WeightMode mode);
std::unique_ptr<VisionTower> make_qwen3_vl_tower(const Json& config, const ModelArgs& text,
                                                 WeightLoader& loader, WeightMode mode);

}  // namespace coppice::models
