#include "coppice/eviction/query_window.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool1d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_pool1d.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>

namespace coppice {
namespace {

// The rotary position that follows the queries in hand, behind the layers' notes: where it is not
// the sequence's own, keys have been renumbered since, and older queries no longer fit them.
int64_t noted_rotary(const std::vector<at::Tensor>& notes) { return notes.back().item<int64_t>(); }

}  // namespace

at::Tensor group_queries(const at::Tensor& q, int64_t head, int64_t kv_heads) {
  const int64_t group = q.size(1) / kv_heads;
  return q.narrow(1, head * group, group);
}

at::Tensor masked_logits(const at::Tensor& q, int64_t first, const at::Tensor& keys,
                         std::span<const int32_t> positions) {
  const int64_t tokens = q.size(0), group = q.size(1);
  at::Tensor logits =
      at::matmul(q.reshape({tokens * group, q.size(2)}), keys.t()).view({tokens, group, -1});
  // Keys at the queries' own positions, at the end, are all that can be newer than a query.
  int64_t newer = 0;
  const auto length = static_cast<int64_t>(positions.size());
  while (newer < length && positions[static_cast<std::size_t>(length - newer - 1)] > first) ++newer;
  if (newer == 0) return logits;
  const at::Tensor late =
      at::from_blob(const_cast<int32_t*>(positions.data()) + (length - newer), {newer}, at::kInt);
  const at::Tensor own = at::arange(first, first + tokens, at::kLong);
  logits.narrow(2, length - newer, newer)
      .masked_fill_(late.gt(own.unsqueeze(1)).unsqueeze(1),
                    -std::numeric_limits<double>::infinity());
  return logits;
}

at::Tensor probabilities(const at::Tensor& logits) { return at::softmax(logits, -1).nan_to_num_(); }

at::Tensor pool_scores(const at::Tensor& scores, int64_t kernel, bool max) {
  if (kernel == 1 || scores.numel() == 0) return scores;
  const at::Tensor row = scores.view({1, 1, -1});
  return (max ? at::max_pool1d(row, kernel, 1, kernel / 2)
              : at::avg_pool1d(row, kernel, 1, kernel / 2))
      .view(-1);
}

int64_t keys_before(std::span<const int32_t> positions, int64_t first) {
  return std::lower_bound(positions.begin(), positions.end(), first) - positions.begin();
}

at::Tensor pool_before(const at::Tensor& scores, int64_t before, int64_t kernel, bool max) {
  return at::cat({pool_scores(scores.narrow(0, 0, before), kernel, max),
                  scores.narrow(0, before, scores.numel() - before)});
}

void QueryWindowScorer::observe(const SequenceView& view, const PassQueries& pass) const {
  std::vector<at::Tensor>& pending = view.pass_notes();
  const std::vector<at::Tensor>& notes = view.notes();
  pending.resize(static_cast<std::size_t>(view.layers()) + 1);
  const auto layer = static_cast<std::size_t>(pass.layer);
  const int64_t fresh = std::min(pass.q.size(0), window_);
  const at::Tensor newest = pass.q.narrow(0, pass.q.size(0) - fresh, fresh);
  const bool fits = notes.size() == pending.size() && noted_rotary(notes) == view.next_rotary();
  const int64_t older = fits ? std::min(notes[layer].size(0), window_ - fresh) : 0;
  pending[layer] =
      older == 0 ? newest.clone()
                 : at::cat({notes[layer].narrow(0, notes[layer].size(0) - older, older), newest});
  pending.back() = at::tensor(view.rotary_after_pass(), at::kLong);
}

void QueryWindowScorer::note(const SequenceView& view) const {
  view.notes() = std::move(view.pass_notes());
  view.pass_notes().clear();
}

void QueryWindowScorer::judge(const SequenceView& view, int64_t) const {
  const std::vector<at::Tensor>& notes = view.notes();
  if (notes.empty()) return;
  for (int64_t layer = 0; layer < view.layers(); ++layer) {
    const at::Tensor& all = notes[static_cast<std::size_t>(layer)];
    const int64_t count = std::min(all.size(0), window_);
    const at::Tensor q = all.narrow(0, all.size(0) - count, count);
    for (int64_t head = 0; head < view.kv_heads(); ++head) {
      const SequenceView::Row row = view.row(layer, head);
      view.set_scores(
          row, score_row(group_queries(q, head, view.kv_heads()), view.tokens_seen() - q.size(0),
                         view.keys(row), row.positions));
    }
  }
}

}  // namespace coppice
