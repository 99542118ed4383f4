#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "coppice/ops/attention_reference.h"
#include "coppice/ops/retention_attention.h"
#include "coppice/ops/retention_attention_kernels.h"

namespace coppice::ops {
namespace {

constexpr int64_t kBlockQueries = 256;

at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Queries [begin, end) of a document and the keys [first, end) before and among them.
struct Block {
  at::Tensor q;     // [Hkv, G, T, D]
  at::Tensor k, v;  // [Hkv, 1, L, D]
  at::Tensor rate;  // slope of the bias by log beta: [T, L]; with a cut [Hkv, 1, T, L], y / (1 + y)
  at::Tensor logits;  // [Hkv, G, T, L], -inf where a key is newer than its query
};

at::Tensor grouped(const at::Tensor& x, int64_t begin, int64_t end, int64_t kv_heads,
                   at::ScalarType type) {
  const int64_t group = x.size(1) / kv_heads;
  return x.slice(0, begin, end)
      .to(type)
      .reshape({end - begin, kv_heads, group, x.size(2)})
      .permute({1, 2, 0, 3});
}

Block make_block(const RetentionInput& in, int64_t first, int64_t begin, int64_t end) {
  const at::ScalarType type = wide_type(in.q);
  const int64_t kv_heads = in.k.size(1);
  Block block;
  block.q = grouped(in.q, begin, end, kv_heads, type);
  block.k = grouped(in.k, first, end, kv_heads, type);
  block.v = grouped(in.v, first, end, kv_heads, type);
  const auto options = at::TensorOptions().dtype(type).device(in.q.device());
  const at::Tensor age =
      at::arange(begin, end, options).unsqueeze(1) - at::arange(first, end, options).unsqueeze(0);
  const at::Tensor fade = in.log_beta.slice(0, first, end).t();         // [Hkv, L]
  at::Tensor bias = fade.unsqueeze(1).unsqueeze(1) * age.clamp_min(0);  // [Hkv, 1, T, L]
  block.rate = age;
  if (in.has_cut()) {
    at::Tensor y = bias.neg() * in.pressure.slice(0, begin, end).unsqueeze(1);
    for (int64_t i = 0; i < in.squarings; ++i) y = y * y;
    bias = at::log1p(y).neg_().masked_fill_(y >= kCutEnd, -std::numeric_limits<double>::infinity());
    block.rate = 1.0 - 1.0 / (1.0 + y);
  }
  block.logits = at::matmul(block.q, block.k.transpose(2, 3)) * in.scale + bias;
  block.logits.masked_fill_(age < 0, -std::numeric_limits<double>::infinity());
  return block;
}

// [Hkv, G, T, D] -> [T, Hkv G, D]
at::Tensor ungrouped(const at::Tensor& x) {
  return x.permute({2, 0, 1, 3}).reshape({x.size(2), x.size(0) * x.size(1), x.size(3)});
}

template <typename Fn>
void for_each_block(std::span<const int64_t> cu_seqlens, const Fn& fn) {
  for (std::size_t b = 0; b + 1 < cu_seqlens.size(); ++b)
    for (int64_t t = cu_seqlens[b]; t < cu_seqlens[b + 1]; t += kBlockQueries)
      fn(cu_seqlens[b], t, std::min(t + kBlockQueries, cu_seqlens[b + 1]));
}

}  // namespace

RetentionOutput retention_forward_blocks(const RetentionInput& in) {
  RetentionOutput result;
  result.out = at::empty_like(in.q);
  result.lse = at::empty({in.q.size(0), in.q.size(1)}, in.log_beta.options());
  for_each_block(in.cu_seqlens, [&](int64_t first, int64_t begin, int64_t end) {
    const Block block = make_block(in, first, begin, end);
    const at::Tensor lse = at::logsumexp(block.logits, -1, /*keepdim=*/true);
    const at::Tensor weights = (block.logits - lse).exp_();
    result.out.slice(0, begin, end).copy_(ungrouped(at::matmul(weights, block.v)));
    result.lse.slice(0, begin, end).copy_(ungrouped(lse).squeeze(2));
  });
  return result;
}

RetentionGradients retention_backward_blocks(const RetentionInput& in,
                                             const RetentionOutput& output,
                                             const at::Tensor& gradient) {
  const at::ScalarType type = wide_type(in.q);
  const int64_t kv_heads = in.k.size(1);
  const at::Tensor to_k = at::zeros_like(in.k, type), to_v = at::zeros_like(in.v, type);
  RetentionGradients result;
  result.q = at::empty_like(in.q);
  result.log_beta = at::zeros_like(in.log_beta);
  const at::Tensor pressure = in.has_cut() ? at::zeros_like(in.pressure) : at::Tensor();
  for_each_block(in.cu_seqlens, [&](int64_t first, int64_t begin, int64_t end) {
    const Block block = make_block(in, first, begin, end);
    const at::Tensor lse = grouped(output.lse.unsqueeze(2), begin, end, kv_heads, type);
    const at::Tensor weights = (block.logits - lse).exp_();
    const at::Tensor given = grouped(gradient, begin, end, kv_heads, type);
    const at::Tensor out = grouped(output.out, begin, end, kv_heads, type);
    const at::Tensor common = (given * out).sum(-1, /*keepdim=*/true);
    const at::Tensor slope = weights * (at::matmul(given, block.v.transpose(2, 3)) - common);
    const auto add_keys = [&](const at::Tensor& sum, const at::Tensor& left,
                              const at::Tensor& right,
                              double factor) {  // [Hkv, L, D], summed over the group
      const at::Tensor part = at::matmul(left.transpose(2, 3), right).sum(1);
      sum.slice(0, first, end).add_(part.transpose(0, 1), factor);
    };
    add_keys(to_v, weights, given, 1.0);
    add_keys(to_k, slope, block.q, in.scale);
    const at::Tensor felt = slope * block.rate;
    result.log_beta.slice(0, first, end).add_(felt.sum({1, 2}).t());
    if (in.has_cut()) pressure.slice(0, begin, end).copy_(felt.sum({0, 1, 3}));
    result.q.slice(0, begin, end).copy_(ungrouped(at::matmul(slope, block.k) * in.scale));
  });
  result.k = to_k.to(in.k.scalar_type());
  result.v = to_v.to(in.v.scalar_type());
  if (in.has_cut()) finish_cut_gradients(in, pressure, result);
  return result;
}

void finish_cut_gradients(const RetentionInput& in, const at::Tensor& pressure,
                          RetentionGradients& to) {
  // Of -ln(1 + y): y falls with log beta and rises with the pressure. Where either is 0 so is the
  // sum.
  constexpr double kLeast = 1e-30;
  to.log_beta = to.log_beta * in.sharpness() / in.log_beta.neg().clamp_min(kLeast);
  to.pressure = pressure * -in.sharpness() / in.pressure.clamp_min(kLeast);
}

at::Tensor retention_attention_reference(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& log_beta,
                                         std::span<const int64_t> cu_seqlens, double scale) {
  const at::ScalarType type = wide_type(q);
  std::vector<at::Tensor> outputs;
  for (std::size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    const int64_t begin = cu_seqlens[b], end = cu_seqlens[b + 1];
    const auto part = [&](const at::Tensor& x) { return x.slice(0, begin, end).to(type); };
    const at::Tensor place =
        at::arange(end - begin, at::TensorOptions().dtype(type).device(q.device()));
    const at::Tensor age = (place.unsqueeze(1) - place.unsqueeze(0)).clamp_min(0);
    const at::Tensor bias = part(log_beta).t().unsqueeze(1) * age;
    const at::Tensor visible = causal_mask(end - begin, end - begin, 0, q.device());
    outputs.push_back(
        attention_reference(part(q), part(k), part(v), scale, visible, bias).to(q.scalar_type()));
  }
  return at::cat(outputs, 0);
}

}  // namespace coppice::ops
