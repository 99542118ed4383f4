// The architectures, by the name that config.json gives them ("model_type").
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coppice/models/model.h"

namespace coppice {

std::vector<std::string> supported_architectures();

// Throws kInvalidArgument, listing what is supported.
void check_supported(const std::string& model_type);

// Whether its tokens have a position in time, height and width (Batch::positions [3, N]).
bool has_three_part_positions(const std::string& model_type);

// A model with uninitialised float32 weights. Throws as check_supported.
std::shared_ptr<Model> make_model(const ModelArgs& args);

}  // namespace coppice
