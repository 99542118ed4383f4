// KeyDiff (arXiv:2504.15364): keys least like the mean direction of all keys of their row,
//
//   s[j] = -cos(k[j], mean over the row of k / |k|)
//
// over what the row holds at the time of choice. Needs no queries; nothing is safe.
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

#include "coppice/eviction/scorer_makers.h"

namespace coppice {
namespace {

constexpr double kSmallest = 1e-12;  // a norm of 0 divides nothing

at::Tensor directions(const at::Tensor& keys) {
  return keys / keys.norm(2, -1, /*keepdim=*/true).clamp_min(kSmallest);
}

class KeydiffScorer final : public Scorer {
 public:
  std::string_view name() const override { return "keydiff"; }
  ScorerNeeds needs() const override { return {.rescored = true}; }
  ScoreForm form() const override { return {.aux_weight = 1.0f}; }

  void judge(const SequenceView& view, int64_t) const override {
    for (int64_t layer = 0; layer < view.layers(); ++layer)
      for (int64_t head = 0; head < view.kv_heads(); ++head) {
        const SequenceView::Row row = view.row(layer, head);
        if (row.places.empty()) continue;
        const at::Tensor unit = directions(view.keys(row));
        view.set_scores(row, -at::matmul(unit, directions(unit.mean(0))));
      }
  }
};

}  // namespace

std::unique_ptr<Scorer> make_keydiff_scorer(ScorerSettings&) {
  return std::make_unique<KeydiffScorer>();
}

}  // namespace coppice
