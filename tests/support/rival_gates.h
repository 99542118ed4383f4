// Gates at random of the kinds whose score does not fade, for tests.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>

#include <string>
#include <vector>

#include "coppice/loader/gate_parts.h"

namespace coppice::testing {

struct GateSizes {
  int64_t layers, kv_heads, hidden_size, query_heads;
};

// One spec of each shape that such gates have: kvzap with a hidden layer and without, fastkvzip.
inline std::vector<GateSpec> rival_specs(const GateSizes& sizes) {
  GateSpec mlp;
  mlp.kind = "kvzap";
  mlp.variant = "local";
  mlp.hidden_layers = 1;
  mlp.width = 5;
  mlp.layers = sizes.layers;
  mlp.kv_heads = sizes.kv_heads;
  mlp.hidden_size = sizes.hidden_size;
  GateSpec linear = mlp, sink = mlp;
  linear.hidden_layers = linear.width = 0;
  sink.kind = "fastkvzip";
  sink.hidden_layers = 0;
  sink.width = 4;
  sink.sinks = 3;
  sink.query_heads = sizes.query_heads;
  return {mlp, linear, sink};
}

inline GateWeights random_rival_gate(const GateSpec& spec) {
  GateWeights gate{spec, {}};
  for (int64_t l = 0; l < spec.layers; ++l) {
    GateLayer layer;
    for (const GatePart& part : gate_parts(spec))
      layer.*part.tensor =
          at::randn(part.shape) * 0.3 + (part.start == GateStart::kOne ? 1.0 : 0.0);
    gate.layers.push_back(layer);
  }
  return gate;
}

// The first spec of a kind. REQUIRES: it is one of these kinds.
inline GateWeights random_rival_gate(std::string_view kind, const GateSizes& sizes) {
  std::vector<GateSpec> specs = rival_specs(sizes);
  return random_rival_gate(kind == specs.back().kind ? specs.back() : specs.front());
}

}  // namespace coppice::testing
