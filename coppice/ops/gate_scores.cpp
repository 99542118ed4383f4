#include "coppice/ops/gate_scores.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/rsqrt.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/fast_path.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

struct SinkSizes {
  int64_t heads, groups, sinks, width;
};

SinkSizes check_arguments(const at::Tensor& u, const SinkGate& gate) {
  if (gate.sinks.dim() == 3 && gate.sinks.size(0) > 0 && u.dim() == 2) {
    const SinkSizes s{gate.sinks.size(0), gate.bias.numel() / gate.sinks.size(0),
                      gate.sinks.size(1), gate.sinks.size(2)};
    const int64_t queries = s.heads * s.groups;
    if (s.groups > 0 && gate.bias.numel() == queries && s.sinks > 0 &&
        gate.query_bias.numel() == queries * s.width && gate.query_norm.numel() == s.width &&
        gate.key_norm.numel() == s.width && u.size(1) == (queries + s.heads) * s.width)
      return s;
  }
  fail_argument(
      "sink gate: expected u [N, (Hq + Hkv) g], a query bias [Hq g], norms [g], sinks [Hkv, S, g] "
      "and a bias [Hq], got {}, {}, {}, {}, {} and {}",
      fmt::join(u.sizes(), "x"), gate.query_bias.numel(), gate.query_norm.numel(),
      gate.key_norm.numel(), fmt::join(gate.sinks.sizes(), "x"), gate.bias.numel());
}

void norm_row(const float* x, const float* bias, const float* weight, int64_t width, float* to) {
  float squares = 0.0F;
  for (int64_t d = 0; d < width; ++d) {
    to[d] = bias == nullptr ? x[d] : x[d] + bias[d];
    squares += to[d] * to[d];
  }
  const float scale =
      1.0F / std::sqrt(squares / static_cast<float>(width) + static_cast<float>(kSinkGateEps));
  for (int64_t d = 0; d < width; ++d) to[d] *= scale * weight[d];
}

float dot(const float* a, const float* b, int64_t width) {
  float sum = 0.0F;
  for (int64_t d = 0; d < width; ++d) sum += a[d] * b[d];
  return sum;
}

float log_sum_exp(const std::vector<float>& x) {
  const float most = *std::max_element(x.begin(), x.end());
  float sum = 0.0F;
  for (const float each : x) sum += std::exp(each - most);
  return most + std::log(sum);
}

float log_sigmoid_of(float x) {
  return x < 0.0F ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x));
}

class SinkRows final {
 public:
  SinkRows(const SinkGate& gate, const SinkSizes& sizes)
      : s_(sizes),
        query_bias_(gate.query_bias.contiguous()),
        query_norm_(gate.query_norm.contiguous()),
        key_norm_(gate.key_norm.contiguous()),
        sinks_(gate.sinks.contiguous()),
        bias_(gate.bias.contiguous()) {}

  // One token: u [(Hq + Hkv) g] -> out [Hkv].
  void run(const float* u, float* out) const {
    std::vector<float> q(static_cast<std::size_t>(s_.width)), k(q.size());
    std::vector<float> rivals(static_cast<std::size_t>(s_.sinks));
    std::vector<float> of_group(static_cast<std::size_t>(s_.groups));
    const float root = std::sqrt(static_cast<float>(s_.width));
    const float* const keys = u + s_.heads * s_.groups * s_.width;
    for (int64_t h = 0; h < s_.heads; ++h) {
      norm_row(keys + h * s_.width, nullptr, data(key_norm_), s_.width, k.data());
      for (int64_t g = 0; g < s_.groups; ++g) {
        const int64_t head = h * s_.groups + g;
        norm_row(u + head * s_.width, data(query_bias_) + head * s_.width, data(query_norm_),
                 s_.width, q.data());
        for (int64_t j = 0; j < s_.sinks; ++j)
          rivals[static_cast<std::size_t>(j)] =
              dot(data(sinks_) + (h * s_.sinks + j) * s_.width, q.data(), s_.width) / root;
        const float own = dot(k.data(), q.data(), s_.width) / root + data(bias_)[head];
        of_group[static_cast<std::size_t>(g)] = log_sigmoid_of(own - log_sum_exp(rivals));
      }
      out[h] = std::min(0.0F, log_sum_exp(of_group) - std::log(static_cast<float>(s_.groups)));
    }
  }

 private:
  static const float* data(const at::Tensor& x) { return x.const_data_ptr<float>(); }

  SinkSizes s_;
  at::Tensor query_bias_, query_norm_, key_norm_, sinks_, bias_;
};

}  // namespace

at::Tensor gelu(at::Tensor x) {
  if (!is_plain_float(x) || !x.is_contiguous()) return at::gelu(x);
  float* const values = x.mutable_data_ptr<float>();
  constexpr int64_t kPieceValues = 2048;
  parallel_for(0, x.numel(), kPieceValues, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      values[i] *= 0.5F * std::erfc(values[i] * -static_cast<float>(std::numbers::sqrt2 / 2));
  });
  return x;
}

at::Tensor sink_gate_score(const at::Tensor& u, const SinkGate& gate) {
  const SinkSizes sizes = check_arguments(u, gate);
  const bool plain = is_plain_float(u) && u.is_contiguous() && is_plain_float(gate.query_bias) &&
                     is_plain_float(gate.query_norm) && is_plain_float(gate.key_norm) &&
                     is_plain_float(gate.sinks) && is_plain_float(gate.bias);
  if (!plain) return sink_gate_score_reference(u, gate);
  const at::Tensor score = at::empty({u.size(0), sizes.heads}, u.options());
  const SinkRows rows(gate, sizes);
  const float* const from = u.const_data_ptr<float>();
  float* const to = score.mutable_data_ptr<float>();
  constexpr int64_t kPieceTokens = 8;
  parallel_for(0, u.size(0), kPieceTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) rows.run(from + t * u.size(1), to + t * sizes.heads);
  });
  return score;
}

at::Tensor sink_gate_score_reference(const at::Tensor& u, const SinkGate& gate) {
  const SinkSizes s = check_arguments(u, gate);
  const int64_t tokens = u.size(0), queries = s.heads * s.groups * s.width;
  const auto norm = [](const at::Tensor& x, const at::Tensor& weight) {
    return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + kSinkGateEps) * weight;
  };
  const at::Tensor q =
      norm((u.slice(1, 0, queries) + gate.query_bias).view({tokens, s.heads, s.groups, s.width}),
           gate.query_norm);
  const at::Tensor k = norm(u.slice(1, queries).reshape({tokens, s.heads, s.width}), gate.key_norm);
  const double root = std::sqrt(static_cast<double>(s.width));
  const at::Tensor own = (q * k.unsqueeze(2)).sum(-1) / root + gate.bias.view({s.heads, s.groups});
  const at::Tensor rivals = at::einsum("nhgd,hjd->nhgj", {q, gate.sinks}) / root;
  const at::Tensor each = at::log_sigmoid(own - at::logsumexp(rivals, {3}));
  return (at::logsumexp(each, {2}) - std::log(static_cast<double>(s.groups))).clamp_max(0.0);
}

}  // namespace coppice::ops
