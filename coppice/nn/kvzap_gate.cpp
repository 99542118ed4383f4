#include "coppice/nn/kvzap_gate.h"

#include <torch/torch.h>

#include <utility>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/gate_scores.h"

namespace coppice::nn {

KvzapGate::KvzapGate(const KvzapGateOptions& options) {
  if (options.hidden_size <= 0 || options.width < 0 || options.num_kv_heads <= 0)
    fail_argument(
        "kvzap gate: hidden size and KV heads must be above 0 and the width not below, got {}, {} "
        "and {}",
        options.hidden_size, options.num_kv_heads, options.width);
  int64_t in = options.hidden_size;
  if (options.width > 0) {
    hidden_ =
        register_module("linear1", std::make_shared<Linear>(in, options.width, /*bias=*/true));
    in = options.width;
  }
  head_ = register_module(hidden_ ? "linear2" : "linear1",
                          std::make_shared<Linear>(in, options.num_kv_heads, /*bias=*/true));
}

at::Tensor KvzapGate::after_first_layer(at::Tensor u) {
  if (u.scalar_type() != at::kDouble) u = u.to(at::kFloat);
  return hidden_ ? head_->forward(ops::gelu(std::move(u))) : u;
}

void KvzapGate::pack() {
  std::vector<std::shared_ptr<Linear>> layers = {head_};
  if (hidden_) layers.push_back(hidden_);
  pack_layers(layers);
}

}  // namespace coppice::nn
