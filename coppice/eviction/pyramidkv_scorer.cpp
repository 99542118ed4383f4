// PyramidKV (arXiv:2406.02069): SnapKV's scores, and budgets that fall in a line from the first
// layer to the last. AdaKV (arXiv:2407.11550): the heads of a layer share its budget by their
// scores. Ada-Pyramid: both.
//
// The regime of the pyramid follows the tokens seen so far. Where a layer does not have what its
// share allows, since it was cut before the text was that long, the others keep more.
#include <algorithm>
#include <tuple>

#include "coppice/eviction/budget_plan.h"
#include "coppice/eviction/candidates.h"
#include "coppice/eviction/scorer_makers.h"
#include "coppice/eviction/snapkv_scorer.h"

namespace coppice {
namespace {

struct Unprotected {
  int32_t rank;
  int32_t position;
  std::size_t head;
};

// Of the entries that a layer is to keep: how many protected ones each row holds, and how many of
// the best of the rest.
void count_best(const SequenceView& view, const RowShares& shares, int64_t layer, int64_t total,
                std::vector<int64_t>& counts, std::vector<int64_t>& safe) {
  std::vector<Unprotected> all;
  const auto heads = static_cast<std::size_t>(view.kv_heads());
  counts.assign(heads, 0), safe.assign(heads, 0);
  for (std::size_t h = 0; h < heads; ++h) {
    const SequenceView::Row row = view.row(layer, static_cast<int64_t>(h));
    const std::vector<float> scores = view.scores(row);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const int32_t position = row.positions[i];
      if (shares.is_safe(position))
        ++safe[h];
      else
        all.push_back({score_rank(scores[i]), position, h});
    }
    total -= safe[h];
  }
  const auto best = std::clamp<int64_t>(total, 0, static_cast<int64_t>(all.size()));
  std::nth_element(
      all.begin(), all.begin() + best, all.end(), [](const Unprotected& a, const Unprotected& b) {
        return std::tuple(b.rank, b.position, a.head) < std::tuple(a.rank, a.position, b.head);
      });
  for (int64_t i = 0; i < best; ++i) ++counts[all[static_cast<std::size_t>(i)].head];
}

class PyramidScorer final : public SnapkvScorer {
 public:
  // beta matters where layers share a budget; with alpha 1 all heads of a layer are alike.
  PyramidScorer(const SnapkvOptions& options, double beta, double alpha)
      : SnapkvScorer(options), beta_(beta), alpha_(alpha) {}

  bool plans() const override { return true; }

  void plan(const SequenceView& view, const RowShares& shares) const override {
    const auto heads = static_cast<std::size_t>(view.kv_heads());
    const std::size_t layers = shares.lengths.size() / heads;
    const std::vector<int64_t> layer_totals = share_layers(view, shares, layers);
    for (std::size_t l = 0; l < layers; ++l) {
      const std::vector<double> wanted =
          share_heads(view, shares, shares.first_row / view.kv_heads() + static_cast<int64_t>(l),
                      layer_totals[l]);
      share_out(wanted, shares.lengths.subspan(l * heads, heads),
                shares.least.subspan(l * heads, heads), layer_totals[l],
                shares.keep.subspan(l * heads, heads));
    }
  }

 private:
  std::vector<int64_t> share_layers(const SequenceView& view, const RowShares& shares,
                                    std::size_t layers) const {
    if (layers == 1) return {shares.total};
    const auto heads = static_cast<int64_t>(shares.lengths.size() / layers);
    std::vector<int64_t> lengths(layers), least(layers), keep(layers);
    for (std::size_t r = 0; r < shares.lengths.size(); ++r) {
      lengths[r / static_cast<std::size_t>(heads)] += shares.lengths[r];
      least[r / static_cast<std::size_t>(heads)] += shares.least[r];
    }
    const int64_t safe = shares.safe;
    const double mean =
        static_cast<double>(shares.total) / static_cast<double>(shares.lengths.size());
    std::vector<double> wanted =
        pyramid_shares(static_cast<int64_t>(layers), mean - static_cast<double>(safe), beta_,
                       view.tokens_seen(), safe);
    // Heads of a layer are equals: whole entries per head, as far as lengths are.
    const bool even =
        std::all_of(lengths.begin(), lengths.end(), [&](int64_t n) { return n % heads == 0; }) &&
        std::all_of(least.begin(), least.end(), [&](int64_t n) { return n % heads == 0; }) &&
        shares.total % heads == 0;
    const int64_t unit = even ? heads : 1;
    for (std::size_t l = 0; l < layers; ++l) {
      wanted[l] = (wanted[l] + static_cast<double>(safe)) * static_cast<double>(heads / unit);
      lengths[l] /= unit, least[l] /= unit;
    }
    share_out(wanted, lengths, least, shares.total / unit, keep);
    for (int64_t& entries : keep) entries *= unit;
    return keep;
  }

  std::vector<double> share_heads(const SequenceView& view, const RowShares& shares, int64_t layer,
                                  int64_t total) const {
    const auto heads = static_cast<std::size_t>(view.kv_heads());
    if (alpha_ == 1.0)
      return std::vector<double>(heads, static_cast<double>(total) / static_cast<double>(heads));
    std::vector<int64_t> counts, safe;
    count_best(view, shares, layer, total, counts, safe);
    std::vector<double> wanted = blend_head_shares(counts, alpha_);
    for (std::size_t h = 0; h < heads; ++h) wanted[h] += static_cast<double>(safe[h]);
    return wanted;
  }

  double beta_, alpha_;
};

double read_beta(ScorerSettings& settings) {
  return settings.options.number("beta", 20.0, 1.0, 1e6);
}

double read_alpha(ScorerSettings& settings) {
  return settings.options.number("alpha", 0.2, 0.0, 1.0);
}

}  // namespace

std::unique_ptr<Scorer> make_pyramidkv_scorer(ScorerSettings& settings) {
  const SnapkvOptions options = read_snapkv_options(settings);
  return std::make_unique<PyramidScorer>(options, read_beta(settings), 1.0);
}

std::unique_ptr<Scorer> make_adakv_scorer(ScorerSettings& settings) {
  const SnapkvOptions options = read_snapkv_options(settings);
  return std::make_unique<PyramidScorer>(options, 1.0, read_alpha(settings));
}

std::unique_ptr<Scorer> make_ada_pyramid_scorer(ScorerSettings& settings) {
  const SnapkvOptions options = read_snapkv_options(settings);
  const double beta = read_beta(settings);
  return std::make_unique<PyramidScorer>(options, beta, read_alpha(settings));
}

}  // namespace coppice
