// CAKE (arXiv:2503.12491): layers share the budget by how spread and how restless the attention of
// their last w queries is; within a row entries count by how much attention they get, and how
// changing it is. With A[i, j] the mean over the group's heads, over keys before the window:
//
//   s[j] = pool( mean_i A[i, j] + gamma var_i A[i, j] )
//   P    = H^(1/tau1) V^(1/tau2),   H = -sum_j Abar[j] log Abar[j],   V = sum_j var_i A[i, j]
//
// H and V in the mean over the layer's heads, Abar the mean over queries; a layer keeps the share
// P / sum P. Variances divide by w. Differs from the paper in judging at every eviction, from the
// last w queries seen by then; its temperatures are tuned per model, ours are 1.
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "coppice/eviction/budget_plan.h"
#include "coppice/eviction/query_window.h"
#include "coppice/eviction/scorer_makers.h"

namespace coppice {
namespace {

struct CakeOptions {
  int64_t window, kernel;
  double gamma, tau1, tau2;
};

class CakeScorer final : public QueryWindowScorer {
 public:
  explicit CakeScorer(const CakeOptions& options)
      : QueryWindowScorer(options.window), options_(options) {}

  std::string_view name() const override { return "cake"; }
  int64_t default_recent() const override { return window(); }
  bool plans() const override { return true; }

  void plan(const SequenceView& view, const RowShares& shares) const override {
    const auto layers = static_cast<std::size_t>(view.layers());
    const auto heads = static_cast<std::size_t>(view.kv_heads());
    const int64_t safe = shares.safe;
    const double past = static_cast<double>(shares.total) -
                        static_cast<double>(safe) * static_cast<double>(shares.keep.size());
    std::vector<double> preference(layers);
    double sum = 0.0;
    for (std::size_t l = 0; l < layers; ++l)
      sum += preference[l] = prefer(view, static_cast<int64_t>(l));
    std::vector<double> wanted;
    for (std::size_t l = 0; l < layers; ++l) {
      const double share =
          sum > 0.0 && std::isfinite(sum) ? preference[l] / sum : 1.0 / static_cast<double>(layers);
      wanted.insert(wanted.end(), heads,
                    static_cast<double>(safe) + past * share / static_cast<double>(heads));
    }
    share_out(wanted, shares.lengths, shares.least, shares.total, shares.keep);
  }

 protected:
  at::Tensor score_row(const at::Tensor& q, int64_t first, const at::Tensor& keys,
                       std::span<const int32_t> positions) const override {
    const at::Tensor p = probabilities(masked_logits(q, first, keys, positions)).mean(1);
    const at::Tensor worth = p.mean(0) + options_.gamma * p.var(0, /*unbiased=*/false);
    return pool_before(worth, keys_before(positions, first), options_.kernel, /*max=*/false);
  }

 private:
  double prefer(const SequenceView& view, int64_t layer) const {
    if (view.notes().empty()) return 0.0;
    const at::Tensor& q = view.notes()[static_cast<std::size_t>(layer)];
    const int64_t first = view.tokens_seen() - q.size(0);
    double spread = 0.0, change = 0.0;
    for (int64_t head = 0; head < view.kv_heads(); ++head) {
      const SequenceView::Row row = view.row(layer, head);
      const int64_t before = keys_before(row.positions, first);
      if (before == 0) continue;
      const at::Tensor p = probabilities(masked_logits(group_queries(q, head, view.kv_heads()),
                                                       first, view.keys(row), row.positions))
                               .mean(1)
                               .narrow(1, 0, before);
      const at::Tensor mean = p.mean(0);
      spread -= (mean * mean.clamp_min(1e-20).log()).sum().item<double>();
      change += p.var(0, /*unbiased=*/false).sum().item<double>();
    }
    const auto heads = static_cast<double>(view.kv_heads());
    return std::pow(std::max(spread / heads, 0.0), 1.0 / options_.tau1) *
           std::pow(std::max(change / heads, 0.0), 1.0 / options_.tau2);
  }

  CakeOptions options_;
};

}  // namespace

std::unique_ptr<Scorer> make_cake_scorer(ScorerSettings& settings) {
  CakeOptions options{};
  options.window = window_within(settings, settings.options.integer("window", 32, 1, 4096));
  options.kernel = odd_kernel(settings, 5);
  options.gamma = settings.options.number("gamma", 200.0, 0.0, 1e6);
  options.tau1 = settings.options.number("tau1", 1.0, 0.01, 100.0);
  options.tau2 = settings.options.number("tau2", 1.0, 0.01, 100.0);
  return std::make_unique<CakeScorer>(options);
}

}  // namespace coppice
