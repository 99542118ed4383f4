// The retention gate of one layer: how fast each KV head forgets a token.
//
//   u = the hidden layers' SiLU MLP of x          x: the input norm's output, which feeds q, k and
//   v z[h] = w[h] . u[h] + b[h]                     log beta = logsigmoid(z), never beta itself
//
// Source: arXiv:2605.09649, equation "gate"; parameter names as in its published checkpoints.
// The variants differ in what layers and heads have in common:
//
//   variant   hidden output u   w          b        common to all layers
//   kShared   [Hkv, g]          [1, g]     [1]      w and b
//   kHeadRow  [g]               [Hkv, g]   [Hkv]    w
//   kLocal    [g]               [Hkv, g]   [Hkv]    nothing
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coppice/nn/gate.h"

namespace coppice::nn {

enum class GateVariant { kShared, kHeadRow, kLocal };

struct RetentionGateOptions {
  GateVariant variant = GateVariant::kHeadRow;
  int64_t hidden_size = 0;
  int64_t width = 0;  // g
  int64_t num_kv_heads = 0;
  int64_t hidden_layers = 2;  // 1 or 2
};

// Submodules linear1 .. linear{hidden_layers}, with bias; the head's weight is
// linear{hidden_layers + 1}.weight and its bias is `bias`.
class RetentionGate final : public Gate {
 public:
  // `first` is the gate of the model's first layer, whose common parameters this one uses; null for
  // that gate itself. Throws kInvalidArgument on sizes out of range.
  explicit RetentionGate(const RetentionGateOptions& options, const RetentionGate* first = nullptr);

  // -> log beta <= 0.
  Linear& first_layer() override { return *hidden_.front(); }
  at::Tensor after_first_layer(at::Tensor u) override;
  void pack() override;
  int64_t num_kv_heads() const override { return options_.num_kv_heads; }
  bool is_packed() const;  // all of it

  const RetentionGateOptions& options() const { return options_; }

 private:
  // after_first_layer of a packed gate on raw memory, by the calling thread alone: for a few
  // tokens, which are not worth sharing out. u [tokens, out of the first layer] is written over;
  // log_beta [tokens, Hkv].
  void finish_rows(float* u, int64_t tokens, float* log_beta) const;

  RetentionGateOptions options_;
  std::vector<std::shared_ptr<Linear>> hidden_;
  std::shared_ptr<Linear> head_;  // without bias: its weight and the bias are shared apart
  at::Tensor bias_;
};

}  // namespace coppice::nn
