#include "coppice/ops/attention_reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include <limits>

#include "coppice/core/error.h"

namespace coppice::ops {

at::Tensor causal_mask(int64_t queries, int64_t keys, int64_t window, c10::Device device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor query = at::arange(keys - queries, keys, options).unsqueeze(1);
  const at::Tensor key = at::arange(keys, options).unsqueeze(0);
  at::Tensor visible = key <= query;
  if (window > 0) visible = visible.logical_and(key > query - window);
  return visible;
}

at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               double scale, const at::Tensor& visible, const at::Tensor& bias) {
  const int64_t queries = q.size(0);
  const int64_t heads = q.size(1);
  const int64_t kv_heads = k.size(1);
  if (kv_heads == 0 || heads % kv_heads != 0)
    fail_argument("attention: {} query heads do not divide among {} KV heads", heads, kv_heads);
  const int64_t group = heads / kv_heads;
  // [Hkv, G, T, D] against [Hkv, 1, L, D]
  const at::Tensor grouped = q.reshape({queries, kv_heads, group, q.size(2)}).permute({1, 2, 0, 3});
  const at::Tensor keys = k.permute({1, 2, 0}).unsqueeze(1);
  const at::Tensor values = v.permute({1, 0, 2}).unsqueeze(1);
  const at::Tensor mask = visible.dim() == 2 ? visible : visible.unsqueeze(1);  // to [Hkv, G, T, L]
  at::Tensor logits = at::matmul(grouped, keys) * scale;
  if (bias.defined()) logits = logits + bias.unsqueeze(1);
  logits = logits.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
  const at::Tensor empty = mask.any(-1, /*keepdim=*/true).logical_not();
  const at::Tensor weights = at::softmax(logits, -1).masked_fill(empty, 0.0);
  return at::matmul(weights, values).permute({2, 0, 1, 3}).reshape({queries, heads, v.size(2)});
}

}  // namespace coppice::ops
