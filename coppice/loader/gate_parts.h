// What a gate of each kind is made of: one list from which files are read and written, modules
// filled, new gates drawn and bytes counted. A kind is a row of the table in gate_parts.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/loader/gate_checkpoint.h"

namespace coppice {

// What a part of a new gate holds.
enum class GateStart { kDrawn, kZero, kOne, kBias };

// One tensor of a layer's gate.
struct GatePart {
  std::string name;       // in our files: behind "layers.{l}.", or alone where layers share it
  std::string parameter;  // of the module in nn/
  at::Tensor GateLayer::*tensor;
  std::vector<int64_t> shape;
  GateStart start = GateStart::kZero;
  bool shared = false;  // by all layers
  bool matrix = false;  // BF16 in a BF16 file; packed with packed weights
};

// Of each layer, in the order in which new ones are drawn. Throws as GateSpec::validate.
std::vector<GatePart> gate_parts(const GateSpec& spec);

// The names of all kinds, the retention gate first.
std::vector<std::string_view> gate_kinds();

}  // namespace coppice
