// Checkpoints of vision-language models as two models under one roof: the text model, which every
// reader of a Checkpoint sees as if it stood alone, and the vision side beside it.
//
//   llava   config() is text_config, with the defaults of its family where the file leaves them out
//           vision_config() is the whole of config.json
//           tensors: "model...." and "lm_head.weight" of the text model, "vision_tower...." and
//           "multi_modal_projector...." of the vision side
//   qwen3_vl  likewise; config() also tells "deepstack_layers", how many layers of the vision side
//           feed the text model. Tensors of the vision side: "visual...."
//
// Three spellings of the names are in use ("language_model.model.layers...", "model.language_model.
// layers...", and "vision_tower.vision_model.encoder..." beside "vision_tower.encoder..."); all
// become the one above. Internal to loader/, but for is_vision_tensor().
#pragma once

#include <string>
#include <string_view>

#include "coppice/core/json.h"

namespace coppice {

// Whether config.json is of a model with a vision side that is known here.
bool is_vision_language(const Json& config);

// The text model's config.json. Throws kInvalidArgument when there is none.
Json text_config_of(const Json& config);

// The name that a tensor of a vision-language checkpoint goes by.
std::string unified_name(std::string_view name);

// Whether a tensor, by its unified name, belongs to the vision side.
bool is_vision_tensor(std::string_view name);

}  // namespace coppice
