// H2O (arXiv:2306.14048): all the attention an entry has got since it was stored, in the mean over
// the heads of its group; the newest half of the budget is safe. Float32 sums, which move with
// their entries and go with them. An entry's sum is what queries paid among the keys stored then.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "coppice/eviction/query_window.h"
#include "coppice/eviction/scorer_makers.h"

namespace coppice {
namespace {

constexpr int64_t kQueriesAtOnce = 64;

class H2oScorer final : public Scorer {
 public:
  std::string_view name() const override { return "h2o"; }
  ScorerNeeds needs() const override { return {.queries = true}; }
  ScoreForm form() const override { return {.aux_weight = 1.0f}; }
  int64_t default_recent() const override { return std::numeric_limits<int64_t>::max(); }

  // Per row, what the pass adds. [L]
  void observe(const SequenceView& view, const PassQueries& pass) const override {
    std::vector<at::Tensor>& pending = view.pass_notes();
    pending.resize(static_cast<std::size_t>(view.layers() * view.kv_heads()));
    for (int64_t head = 0; head < view.kv_heads(); ++head) {
      const at::Tensor q = group_queries(pass.q, head, view.kv_heads());
      const SequenceView::Row row = view.row(pass.layer, head);
      const at::Tensor keys = view.keys(row);
      at::Tensor sum = at::zeros({keys.size(0)});
      for (int64_t t = 0; t < q.size(0); t += kQueriesAtOnce) {
        const int64_t count = std::min(kQueriesAtOnce, q.size(0) - t);
        sum += probabilities(masked_logits(q.narrow(0, t, count), view.tokens_seen() + t, keys,
                                           row.positions))
                   .sum(c10::IntArrayRef{0, 1});
      }
      pending[static_cast<std::size_t>(pass.layer * view.kv_heads() + head)] = sum / q.size(1);
    }
  }

  void note(const SequenceView& view) const override {
    const std::vector<at::Tensor>& pending = view.pass_notes();
    for (std::size_t r = 0; r < pending.size(); ++r) {
      const auto n = static_cast<int64_t>(r);
      const SequenceView::Row row = view.row(n / view.kv_heads(), n % view.kv_heads());
      std::vector<float> sums = view.scores(row);
      const float* added = pending[r].const_data_ptr<float>();
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += added[i];
      view.set_scores(row, sums);
    }
  }
};

}  // namespace

std::unique_ptr<Scorer> make_h2o_scorer(ScorerSettings&) { return std::make_unique<H2oScorer>(); }

}  // namespace coppice
