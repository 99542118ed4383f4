// What saved sessions of a server depend on, as one hash.
#pragma once

#include <string>

#include "apps/runtime.h"

namespace coppice {

// Of the model's files, the gate's file, how weights and keys are held, positions and chunk.
std::string session_settings(const Runtime& runtime, const EngineConfig& config);

}  // namespace coppice
