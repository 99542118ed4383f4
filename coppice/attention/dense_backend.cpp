#include "coppice/attention/dense_backend.h"

#include <torch/torch.h>

#include <vector>

#include "coppice/ops/attention_reference.h"

namespace coppice {
namespace {

// Queries per piece of a windowed sequence: bounds the mask and the logits.
constexpr int64_t kPieceQueries = 256;

at::Tensor attend_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  const at::Tensor out = at::scaled_dot_product_attention(
      heads_first(q), heads_first(k), heads_first(v), /*attn_mask=*/{}, /*dropout_p=*/0.0,
      /*is_causal=*/true, scale, /*enable_gqa=*/q.size(1) != k.size(1));
  return out.squeeze(0).transpose(0, 1);
}

at::Tensor attend_window(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const AttentionInput& input) {
  std::vector<at::Tensor> pieces;
  for (int64_t begin = 0; begin < q.size(0); begin += kPieceQueries) {
    const int64_t end = std::min(begin + kPieceQueries, q.size(0));
    const int64_t first = std::max<int64_t>(0, begin - input.window + 1);
    const at::Tensor visible = ops::causal_mask(end - begin, end - first, input.window, q.device());
    pieces.push_back(ops::attention_reference(q.slice(0, begin, end), k.slice(0, first, end),
                                              v.slice(0, first, end), input.scale, visible));
  }
  return at::cat(pieces, 0);
}

}  // namespace

at::Tensor DenseBackend::forward(const AttentionInput& input, const Batch& batch) {
  std::vector<at::Tensor> outputs;
  for (int64_t b = 0; b < batch.num_sequences(); ++b) {
    const int64_t begin = batch.cu_seqlens[b];
    const int64_t end = batch.cu_seqlens[b + 1];
    const at::Tensor q = input.q.slice(0, begin, end);
    const at::Tensor k = input.k.slice(0, begin, end);
    const at::Tensor v = input.v.slice(0, begin, end);
    const bool all = input.window <= 0 || input.window >= end - begin;
    outputs.push_back(all ? attend_all(q, k, v, input.scale) : attend_window(q, k, v, input));
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs, 0);
}

}  // namespace coppice
