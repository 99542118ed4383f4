#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/diag.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "coppice/eviction/expected_attention.h"
#include "coppice/eviction/query_window.h"
#include "coppice/eviction/scorer_makers.h"

namespace coppice {
namespace {

// [count, D/2] float64
at::Tensor angles(const at::Tensor& inv_freq, int64_t first, int64_t count) {
  return at::arange(first, first + count, at::kDouble).unsqueeze(1) * inv_freq.to(at::kDouble);
}

struct Options {
  int64_t sinks, future;
  double epsilon;
  bool covariance, value_norm;
};

// Notes: per layer the sum [Hq, D] and the sum of outer products [Hq, D, D] of queries before
// rotation, float64; then how many they are, and the model's frequencies.
class ExpectedAttentionScorer final : public Scorer {
 public:
  explicit ExpectedAttentionScorer(const Options& options) : options_(options) {}

  std::string_view name() const override { return "expected-attention"; }
  ScorerNeeds needs() const override { return {.queries = true, .rope = true, .rescored = true}; }
  ScoreForm form() const override { return {.aux_weight = 1.0f}; }

  void observe(const SequenceView& view, const PassQueries& pass) const override {
    const auto layers = static_cast<std::size_t>(view.layers());
    std::vector<at::Tensor>& pending = view.pass_notes();
    pending.resize(2 * layers + 2);
    const std::vector<at::Tensor>& notes = view.notes();
    const bool known = notes.size() == pending.size();
    const int64_t tokens = pass.q.size(0);
    const int64_t skip = std::clamp<int64_t>(options_.sinks - view.tokens_seen(), 0, tokens);
    const at::Tensor q =
        unrotate(pass.q, pass.turns).narrow(0, skip, tokens - skip).transpose(0, 1);  // [Hq, T, D]
    const std::size_t at = 2 * static_cast<std::size_t>(pass.layer);
    pending[at] = q.sum(1);
    pending[at + 1] = at::matmul(q.transpose(1, 2), q);
    at::Tensor& count = pending[2 * layers];
    count = at::tensor(tokens - skip, at::kLong);
    if (known) {
      pending[at] += notes[at];
      pending[at + 1] += notes[at + 1];
      count += notes[2 * layers];
    }
    pending.back() = pass.inv_freq;
  }

  void note(const SequenceView& view) const override {
    if (view.pass_notes().empty()) return;
    view.notes() = std::move(view.pass_notes());
    view.pass_notes().clear();
  }

  void judge(const SequenceView& view, int64_t) const override {
    const std::vector<at::Tensor>& notes = view.notes();
    const auto layers = static_cast<std::size_t>(view.layers());
    if (notes.empty() || notes[2 * layers].item<int64_t>() == 0) return;
    const auto count = notes[2 * layers].item<double>();
    const at::Tensor rotation = mean_rotation(notes.back(), view.next_rotary(), options_.future);
    for (std::size_t l = 0; l < layers; ++l) {
      const at::Tensor mean = notes[2 * l] / count;
      const at::Tensor turned = at::matmul(mean, rotation.t()).to(at::kFloat);
      at::Tensor covariance;
      if (options_.covariance) {
        covariance = notes[2 * l + 1] / count - mean.unsqueeze(2) * mean.unsqueeze(1);
        covariance = at::matmul(at::matmul(rotation, covariance), rotation.t()).to(at::kFloat);
      }
      for (int64_t head = 0; head < view.kv_heads(); ++head)
        score_row(view, view.row(static_cast<int64_t>(l), head), turned, covariance);
    }
  }

 private:
  void score_row(const SequenceView& view, const SequenceView::Row& row, const at::Tensor& mean,
                 const at::Tensor& covariance) const {
    const int64_t group = mean.size(0) / view.kv_heads();
    const at::Tensor keys = view.keys(row);
    const int64_t sinks =
        std::lower_bound(row.positions.begin(), row.positions.end(), options_.sinks) -
        row.positions.begin();
    const int64_t rest = keys.size(0) - sinks;
    at::Tensor scores = at::zeros({keys.size(0)});
    if (rest > 0) {
      const at::Tensor mine =
          covariance.defined() ? covariance.narrow(0, row.head * group, group) : covariance;
      at::Tensor worth = expected_probabilities(mean.narrow(0, row.head * group, group), mine,
                                                keys.narrow(0, sinks, rest))
                             .mean(0) +
                         options_.epsilon;
      if (options_.value_norm) worth *= view.values(row).narrow(0, sinks, rest).norm(2, -1);
      scores.narrow(0, sinks, rest).copy_(worth);
    }
    view.set_scores(row, scores);
  }

  Options options_;
};

}  // namespace

at::Tensor mean_rotation(const at::Tensor& inv_freq, int64_t first, int64_t count) {
  const at::Tensor turn = angles(inv_freq, first, count);
  const at::Tensor cos = at::diag(turn.cos().mean(0)), sin = at::diag(turn.sin().mean(0));
  return at::cat({at::cat({cos, -sin}, 1), at::cat({sin, cos}, 1)}, 0);
}

at::Tensor expected_probabilities(const at::Tensor& mean, const at::Tensor& covariance,
                                  const at::Tensor& keys) {
  at::Tensor logits = at::matmul(mean, keys.t());
  if (covariance.defined()) logits += (at::matmul(keys, covariance) * keys).sum(-1) / 2;
  return at::softmax(logits, -1);
}

at::Tensor unrotate(const at::Tensor& q, const at::Tensor& turns) {
  const at::Tensor turn = turns.unsqueeze(1);
  const int64_t half = q.size(2) / 2;
  const at::Tensor low = q.narrow(2, 0, half).to(at::kDouble);
  const at::Tensor high = q.narrow(2, half, half).to(at::kDouble);
  return at::cat({low * turn.cos() + high * turn.sin(), high * turn.cos() - low * turn.sin()}, 2);
}

std::unique_ptr<Scorer> make_expected_attention_scorer(ScorerSettings& settings) {
  Options options{};
  options.sinks = *settings.config.sinks;
  options.future = settings.options.integer("future", 512, 1, 1'000'000);
  options.epsilon = settings.options.number("epsilon", 0.0, 0.0, 1e6);
  options.covariance = settings.options.word("covariance", "on", {"on", "off"}) == "on";
  options.value_norm = settings.options.word("value-norm", "on", {"on", "off"}) == "on";
  return std::make_unique<ExpectedAttentionScorer>(options);
}

}  // namespace coppice
