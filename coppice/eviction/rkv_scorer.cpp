// R-KV (arXiv:2505.24133): importance less redundancy, Z = lambda I - (1 - lambda) R, per KV head.
//
//   I[j]   max over the group's heads of the logits of the last w queries, softmax over the keys
//          before the window, mean over the queries, max-pooled
//   R[j]   softmax over j of the mean over i of cos(k[i], k[j]), where each row i spares its newest
//          near-duplicate (cosine above the threshold; the first key where there is none) and
//          itself
//
// Differs from the published code in choosing after every pass that is over the budget, not every
// 128 steps and that much above it: all policies hold the same bytes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "coppice/eviction/query_window.h"
#include "coppice/eviction/scorer_makers.h"

namespace coppice {
namespace {

constexpr int64_t kRowsAtOnce = 64;
constexpr double kNormSlack = 1e-8;

struct RkvOptions {
  int64_t window, kernel;
  double lambda, threshold;
};

// keys [L, D] -> R [L]
at::Tensor redundancy(const at::Tensor& keys, double threshold) {
  const int64_t length = keys.size(0);
  const at::Tensor unit = keys / (keys.norm(2, -1, /*keepdim=*/true) + kNormSlack);
  const at::Tensor columns = at::arange(length, at::kLong);
  at::Tensor sum = at::zeros({length});
  for (int64_t first = 0; first < length; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, length - first);
    at::Tensor cosine = at::matmul(unit.narrow(0, first, count), unit.t());
    const at::Tensor own = at::arange(first, first + count, at::kLong).unsqueeze(1);
    cosine.scatter_(1, own, 0.0);
    const at::Tensor spared = at::where(cosine.gt(threshold), columns, 0).amax(1, true);
    cosine.scatter_(1, spared, 0.0);
    sum += cosine.sum(0);
  }
  return at::softmax(sum / length, 0);
}

class RkvScorer final : public QueryWindowScorer {
 public:
  explicit RkvScorer(const RkvOptions& options)
      : QueryWindowScorer(options.window), options_(options) {}

  std::string_view name() const override { return "rkv"; }
  int64_t default_recent() const override { return window(); }

 protected:
  at::Tensor score_row(const at::Tensor& q, int64_t first, const at::Tensor& keys,
                       std::span<const int32_t> positions) const override {
    const int64_t before = keys_before(positions, first);
    const at::Tensor logits = masked_logits(q, first, keys, positions).amax(1);
    at::Tensor importance = at::zeros({keys.size(0)});
    if (before > 0)
      importance.narrow(0, 0, before)
          .copy_(pool_scores(at::softmax(logits.narrow(1, 0, before), -1).mean(0), options_.kernel,
                             /*max=*/true));
    return options_.lambda * importance -
           (1.0 - options_.lambda) * redundancy(keys, options_.threshold);
  }

 private:
  RkvOptions options_;
};

}  // namespace

std::unique_ptr<Scorer> make_rkv_scorer(ScorerSettings& settings) {
  RkvOptions options{};
  options.window = window_within(settings, settings.options.integer("window", 8, 1, 4096));
  options.kernel = odd_kernel(settings, 7);
  options.lambda = settings.options.number("lambda", 0.1, 0.0, 1.0);
  options.threshold = settings.options.number("threshold", 0.5, -1.0, 1.0);
  return std::make_unique<RkvScorer>(options);
}

}  // namespace coppice
