// TOVA (arXiv:2401.06104): what the newest query pays attention to, in the mean over all heads of
// the layer, whose rows keep the same tokens. Nothing is safe, the newest token included.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "coppice/core/error.h"
#include "coppice/eviction/query_window.h"
#include "coppice/eviction/scorer_makers.h"

namespace coppice {
namespace {

class TovaScorer final : public QueryWindowScorer {
 public:
  TovaScorer() : QueryWindowScorer(1) {}

  std::string_view name() const override { return "tova"; }

  void judge(const SequenceView& view, int64_t) const override {
    const std::vector<at::Tensor>& notes = view.notes();
    if (notes.empty()) return;
    for (int64_t layer = 0; layer < view.layers(); ++layer) {
      const SequenceView::Row first = view.row(layer, 0);
      at::Tensor sum = at::zeros({static_cast<int64_t>(first.places.size())});
      std::vector<SequenceView::Row> rows;
      for (int64_t head = 0; head < view.kv_heads(); ++head) {
        rows.push_back(view.row(layer, head));
        COPPICE_CHECK(rows.back().positions == first.positions,
                      "the rows of layer {} hold different tokens", layer);
        sum +=
            score_row(group_queries(notes[static_cast<std::size_t>(layer)], head, view.kv_heads()),
                      view.tokens_seen() - 1, view.keys(rows.back()), rows.back().positions);
      }
      sum /= view.kv_heads();
      for (const SequenceView::Row& row : rows) view.set_scores(row, sum);
    }
  }

 protected:
  at::Tensor score_row(const at::Tensor& q, int64_t first, const at::Tensor& keys,
                       std::span<const int32_t> positions) const override {
    return probabilities(masked_logits(q, first, keys, positions)).mean(c10::IntArrayRef{0, 1});
  }
};

}  // namespace

std::unique_ptr<Scorer> make_tova_scorer(ScorerSettings&) { return std::make_unique<TovaScorer>(); }

}  // namespace coppice
