// A forward pass of the frozen model with its full cache, of which each layer is shown to whoever
// makes labels for the gates.
#pragma once

#include <cstddef>
#include <functional>

#include "coppice/core/rng.h"
#include "coppice/nn/attention_backend.h"
#include "coppice/ops/need_labels.h"

namespace coppice {

struct Model;

class LabelPass final : public AttentionBackend {
 public:
  // What a layer brings: what labels are made of, with |r| of the residual stream as its norm, and
  // the input norm's output [N, C], a copy, which feeds the gate.
  using OfLayer = std::function<void(ops::NeedInput& need, const at::Tensor& normed)>;

  // Watches the model's layers while it lives; `model` must outlive it. One at a time.
  LabelPass(Model& model, OfLayer of_layer);
  ~LabelPass() override;

  at::Tensor forward(const AttentionInput& input, const Batch& batch) override;

  // Throws kInvalidArgument for a model with packed weights.
  static void check(const Model& model);

 private:
  Model& model_;
  OfLayer of_layer_;
  at::Tensor norm_;    // [N] float32
  at::Tensor normed_;  // [N, C]
};

// `count` places below `below`, drawn one by one: [count] int64.
at::Tensor draw_places(int64_t count, int64_t below, Rng& rng);

// What the gates of all layers say, [n, L, Hkv], of the inputs [n, C] that `input` names by layer.
at::Tensor gate_outputs(const Model& model,
                        const std::function<at::Tensor(std::size_t layer)>& input);

}  // namespace coppice
