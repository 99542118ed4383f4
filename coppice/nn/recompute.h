// Activations that are not kept: the backward pass runs the forward pass again.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace coppice::nn {

using Segment = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// segment(inputs), of which only the inputs are kept for the backward pass, which runs it a second
// time and gives the same gradients, those of parameters inside included. An input may be
// undefined. `anchor` is any tensor that takes a gradient: it makes the results take one when no
// input does. REQUIRES: what `segment` refers to outlives the backward pass; it gives the same
// result each time and writes over no input. Differentiable once.
std::vector<at::Tensor> recompute(Segment segment, const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& anchor);

}  // namespace coppice::nn
