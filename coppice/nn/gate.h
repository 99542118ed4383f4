// The gate of one layer: what a KV entry is worth, said by the layer's input when it is written.
//
// x, the input norm's output, which feeds q, k and v, gives one number per KV head. A retention
// gate gives log beta <= 0, how fast the entry fades (docs/maths.md 1); gates of other kinds give a
// score that stays as it is (docs/maths.md 25, 26). Attention knows no kind: it hands the number to
// the backend, and the eviction policy that names the kind reads it.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "coppice/nn/linear.h"

namespace coppice::nn {

class Gate : public torch::nn::Module {
 public:
  // x [N, C] -> [N, Hkv] float32, or float64 for float64 input.
  at::Tensor forward(const at::Tensor& x) { return after_first_layer(first_layer().forward(x)); }

  // The same in two steps, so that the product with x can be shared with those of q, k and v. `u`
  // may be written over.
  virtual Linear& first_layer() = 0;
  virtual at::Tensor after_first_layer(at::Tensor u) = 0;

  // Packs each matrix for which packed_type() names a form.
  virtual void pack() = 0;

  virtual int64_t num_kv_heads() const = 0;

  // Q8_0 for a matrix of bfloat16 numbers, as gate files hold, where its rows are whole groups of
  // 32, BF16 where not; nothing for one with more precision, which stays as it is.
  static std::optional<StorageType> packed_type(const at::Tensor& weight);

 protected:
  // Those that are packed already stay: a layer that gates share.
  static void pack_layers(std::span<const std::shared_ptr<Linear>> layers);
};

}  // namespace coppice::nn
