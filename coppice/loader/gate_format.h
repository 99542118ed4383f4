// The pieces of the two gate formats. Internal to loader/.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coppice/loader/gate_checkpoint.h"

namespace coppice {

// A gate file's tensors by name.
using GateTensors = std::map<std::string, StoredTensor, std::less<>>;

// From our format's metadata and tensors.
GateWeights read_own_gate(const GateTensors& tensors,
                          const std::map<std::string, std::string>& metadata,
                          const std::string& what);

// From the published names. `record` holds what else is known of the gate: safetensors metadata or
// config.json; it becomes the training record and supplies the base model where `options` does not.
GateWeights read_published_gate(const GateTensors& tensors, const Json& record,
                                const GateReadOptions& options, const std::string& what);

}  // namespace coppice
