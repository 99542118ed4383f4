// A forward pass of the frozen model with its full cache, of which each layer is shown to whoever
// makes labels for the gates.
#pragma once

#include <functional>

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

}  // namespace coppice
