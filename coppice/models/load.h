// From a checkpoint to a model that runs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "coppice/models/model.h"

namespace coppice {

class Checkpoint;
struct TensorInfo;
struct GateWeights;

// How weights are held and multiplied.
enum class WeightMode {
  kFloat32,   // dequantised, float32 products: the reference
  kBFloat16,  // dequantised to bfloat16, activations likewise: what training runs on;
              // differentiable
  kPacked,    // ops::PackedMatrix: small and fast, float32 activations in between
};

// The model named by the checkpoint's config, its weights filled, gates attached when given. In
// evaluation mode, without gradients. Throws as WeightLoader and the gate checks do.
std::shared_ptr<Model> load_model(const Checkpoint& checkpoint, WeightMode mode,
                                  const GateWeights* gate = nullptr);

// Gives every attention layer its retention gate. Throws kInvalidArgument when the gate's layers,
// heads or sizes are not the model's, or the model has gates already.
void attach_gate(Model& model, const GateWeights& gate);
bool has_gate(const Model& model);
// In memory, once attached to a model whose weights are packed or not.
int64_t gate_bytes(const GateWeights& gate, bool packed);

// Bytes that load_model will hold, from the header alone (for `plan`).
int64_t weight_bytes(const Checkpoint& checkpoint, WeightMode mode,
                     const GateWeights* gate = nullptr);

// Bytes of one tensor once loaded: packed when it is a matrix and `mode` packs.
int64_t tensor_bytes(const TensorInfo& info, WeightMode mode);

}  // namespace coppice
