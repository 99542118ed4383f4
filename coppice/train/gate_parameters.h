// The gates of a model as what training works on: new ones, their parameters, and back to a file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/loader/gate_checkpoint.h"

namespace coppice {

struct Model;

// A gate to start from. Matrices and sinks are drawn in float32 from N(0, 0.02^2), norms are 1,
// hidden biases 0 and the last bias is `bias` everywhere. An entry under a retention gate then
// fades by half in about 0.7 e^bias steps. The published recipes use 18, where gradients are 1e-8
// of what they are at 0; with budgets of a few hundred entries 6 to 8 learns at once. `spec` is
// complete but for `training`. The same seed gives the same gate on every machine.
GateWeights new_gate(const GateSpec& spec, double bias, uint64_t seed);

struct NamedParameter {
  std::string name;  // "layers.3.linear1.weight"; one that layers share bears its first name
  at::Tensor value;  // the module's own
};

// Each parameter of the model's gates once. Throws kInvalidArgument when the model has no gates.
std::vector<NamedParameter> gate_parameters(const Model& model);

// What the model's gates hold now. `spec` is that of the gate that was attached.
GateWeights read_gate(const Model& model, const GateSpec& spec);

}  // namespace coppice
