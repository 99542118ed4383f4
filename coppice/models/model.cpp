#include "coppice/models/model.h"

namespace coppice {

torch::Tensor Model::forward(const Batch& batch, AttentionBackend& backend) {
  ForwardState state = begin(batch);
  while (!advance(state, backend, args_.num_hidden_layers)) {
  }
  return finish(state);
}

}  // namespace coppice
