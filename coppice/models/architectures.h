// The constructors of all architectures, each defined in the file that bears its name.
#pragma once

#include <memory>

#include "coppice/models/model.h"

namespace coppice::models {

std::shared_ptr<Model> make_llama(const ModelArgs& args);
std::shared_ptr<Model> make_qwen2(const ModelArgs& args);
std::shared_ptr<Model> make_qwen3(const ModelArgs& args);
std::shared_ptr<Model> make_qwen3_vl_text(const ModelArgs& args);

}  // namespace coppice::models
