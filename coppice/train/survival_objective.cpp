#include "coppice/train/survival_objective.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/models/model.h"
#include "coppice/train/label_pass.h"

namespace coppice {
namespace {

constexpr int64_t kMiddleCut = 1;       // of ops::kNeedCuts
constexpr double kShortestFade = 1e-9;  // of -log beta, in the logarithm

// Of each token of a batch: tokens that follow it in its document, and its age at each cut (0 or
// less where it comes after the cut).
struct Places {
  at::Tensor rest;     // [N] int64
  at::Tensor cut_age;  // [N, kNeedCuts] int64
};

Places places_of(const Batch& batch) {
  const int64_t tokens = batch.num_tokens();
  Places places{torch::empty({tokens}, torch::kLong),
                torch::empty({tokens, ops::kNeedCuts}, torch::kLong)};
  auto rest = places.rest.accessor<int64_t, 1>();
  auto age = places.cut_age.accessor<int64_t, 2>();
  for (std::size_t b = 0; b + 1 < batch.cu_seqlens.size(); ++b) {
    const int64_t begin = batch.cu_seqlens[b], size = batch.cu_seqlens[b + 1] - begin;
    for (int64_t i = 0; i < size; ++i) {
      rest[begin + i] = size - 1 - i;
      for (int64_t c = 0; c < ops::kNeedCuts; ++c) age[begin + i][c] = (c + 1) * size / 4 - i;
    }
  }
  return places;
}

at::Tensor log_ages() {
  return torch::arange(ops::kNeedAges, torch::kFloat) * std::log(2.0) + std::log(4.0);
}

}  // namespace

struct SurvivalObjective::Features {
  std::vector<at::Tensor> inputs;  // [N, C] of each layer
  at::Tensor needed;   // [N, L, Hkv, kNeedAges] float32: y, the share of thresholds reached
  at::Tensor counts;   // [N, kNeedAges] bool: the document shows enough of this age
  at::Tensor cuts;     // [N, L, Hkv, kNeedCuts] float32: F
  at::Tensor cut_age;  // [N, kNeedCuts]
};

void SurvivalTraining::validate() const {
  if (log_thresholds.empty()) fail_argument("survival training: it needs thresholds");
  for (const double value : log_thresholds)
    if (!std::isfinite(value)) fail_argument("survival training: a threshold is {}", value);
  if (updates < 1 || tokens_per_update < 1 || pairs < 0 || pair_weight < 0)
    fail_argument(
        "survival training: expected updates and tokens above 0 and pairs and their weight not "
        "below, got {}, {}, {} and {}",
        updates, tokens_per_update, pairs, pair_weight);
}

SurvivalObjective::SurvivalObjective(Model& model, const SurvivalTraining& options)
    : options_(options), sigma_(torch::ones({1}, torch::kFloat)) {
  options_.validate();
  gate_parameters(model);  // refuses a model without gates
  LabelPass::check(model);
}

SurvivalObjective::~SurvivalObjective() = default;

void SurvivalObjective::begin_batch() { features_.clear(); }

const SurvivalObjective::Features& SurvivalObjective::features_of(Model& model,
                                                                  const MicroBatch& micro) {
  std::unique_ptr<Features>& slot = features_[micro.index];
  if (slot) return *slot;
  const torch::NoGradGuard no_gradient;
  auto features = std::make_unique<Features>();
  std::vector<ops::NeedLabels> labels;
  LabelPass pass(model, [&](ops::NeedInput& need, const at::Tensor& normed) {
    features->inputs.push_back(normed);
    need.utility = options_.utility;
    labels.push_back(ops::need_labels(need));
  });
  model.forward(micro.batch, pass);
  std::vector<at::Tensor> needed, cuts;
  for (const ops::NeedLabels& label : labels) {
    // The largest utility at this age or later.
    const at::Tensor later = std::get<0>(label.ages.flip({2}).cummax(2)).flip({2});
    at::Tensor share = torch::zeros_like(later);
    for (const double threshold : options_.log_thresholds) share += (later >= threshold);
    needed.push_back(share / static_cast<double>(options_.log_thresholds.size()));
    cuts.push_back(label.cuts);
  }
  features->needed = torch::stack(needed, 1);
  features->cuts = torch::stack(cuts, 1);
  const Places places = places_of(micro.batch);
  const at::Tensor twice = torch::pow(2.0, torch::arange(ops::kNeedAges) + 3).to(torch::kLong);
  features->counts = places.rest.unsqueeze(1) >= twice.unsqueeze(0);
  features->cut_age = places.cut_age;
  slot = std::move(features);
  return *slot;
}

namespace {

// zeta [n, L, Hkv] of tokens, their F and age at one cut -> mean loss of random pairs; undefined
// where no pair is far enough apart.
at::Tensor pair_loss(const at::Tensor& zeta, const at::Tensor& utility, const at::Tensor& age,
                     const at::Tensor& sigma, const SurvivalTraining& options, Rng& rng) {
  const at::Tensor before = age.gt(0).nonzero().squeeze(1);  // the cut
  if (before.numel() < 2 || options.pairs == 0) return {};
  const at::Tensor log_age = age.index_select(0, before).to(at::kFloat).log();
  const at::Tensor rho =
      (zeta.index_select(0, before) - log_age.unsqueeze(1).unsqueeze(2)).flatten();
  const at::Tensor f = utility.index_select(0, before).flatten();
  const at::Tensor i = draw_places(options.pairs, f.numel(), rng),
                   j = draw_places(options.pairs, f.numel(), rng);
  const at::Tensor gap = f.index_select(0, i) - f.index_select(0, j);
  const at::Tensor apart = gap.abs().gt(options.pair_gap).nonzero().squeeze(1);
  if (apart.numel() == 0) return {};
  const at::Tensor lead = (rho.index_select(0, i) - rho.index_select(0, j)) * gap.sign() / sigma;
  return at::softplus(-lead.index_select(0, apart)).mean();
}

}  // namespace

void SurvivalObjective::accumulate(Model& model, const MicroBatch& micro, const StepInfo& step,
                                   Measures& measures) {
  const Features& features = features_of(model, micro);
  const int64_t tokens = micro.batch.num_tokens();
  Rng rng(mix_seed(options_.seed, static_cast<uint64_t>(step.step),
                   static_cast<uint64_t>(micro.index)));
  const at::Tensor chosen = draw_places(std::min(tokens, options_.tokens_per_update), tokens, rng);

  const at::Tensor log_beta = gate_outputs(
      model, [&](std::size_t layer) { return features.inputs[layer].index_select(0, chosen); });
  const at::Tensor zeta = -(-log_beta).clamp_min(kShortestFade).log();
  const at::Tensor sigma = sigma_.clamp(0.25, 4.0);

  const at::Tensor logits = (zeta.unsqueeze(3) - log_ages()) / sigma;
  const at::Tensor counts = features.counts.index_select(0, chosen).unsqueeze(1).unsqueeze(2);
  const at::Tensor needed = features.needed.index_select(0, chosen);
  const at::Tensor each =
      at::binary_cross_entropy_with_logits(logits, needed, {}, {}, at::Reduction::None);
  const at::Tensor weights = counts.to(at::kFloat).expand_as(each);
  const at::Tensor survival = (each * weights).sum() / weights.sum().clamp_min(1.0);
  at::Tensor pair = torch::zeros({}, torch::kFloat);
  for (int64_t c = 0; c < ops::kNeedCuts; ++c) {
    const at::Tensor loss =
        pair_loss(zeta, features.cuts.index_select(0, chosen).select(3, c),
                  features.cut_age.index_select(0, chosen).select(1, c), sigma, options_, rng);
    if (loss.defined()) pair = pair + loss / static_cast<double>(ops::kNeedCuts);
  }
  const at::Tensor loss = survival + options_.pair_weight * pair;
  const double value = loss.item<double>();
  if (!std::isfinite(value))
    throw NotFinite(fmt::format("step {}: the survival loss is not finite; documents: {}",
                                step.step + 1, fmt::join(micro.labels, "; ")));
  const auto weight = static_cast<double>(tokens);
  (loss * (weight / static_cast<double>(step.tokens))).backward();
  measures.add("loss", value, weight);
  measures.add("survival", survival.item<double>(), weight);
  measures.add("pair", pair.item<double>(), weight);
  measures.add("sigma", sigma.item<double>(), weight);
  measures.add("mean_beta", log_beta.detach().exp().mean().item<double>(), weight);
}

std::vector<double> calibrate_thresholds(Model& model, const std::vector<Row>& rows,
                                         const std::vector<double>& budgets,
                                         ops::NeedUtility utility) {
  if (rows.empty() || budgets.empty())
    fail_argument("survival training: expected rows and budgets to calibrate with, got {} and {}",
                  rows.size(), budgets.size());
  const torch::NoGradGuard no_gradient;
  std::vector<at::Tensor> utilities;
  int64_t documents = 0, cache_rows = 0;
  for (const Row& row : rows) {
    const MicroBatch micro = make_micro_batch(row);
    std::vector<ops::NeedLabels> labels;
    LabelPass pass(model, [&](ops::NeedInput& need, const at::Tensor&) {
      need.utility = utility;
      labels.push_back(ops::need_labels(need));
    });
    model.forward(micro.batch, pass);
    const at::Tensor before =
        places_of(micro.batch).cut_age.select(1, kMiddleCut).gt(0).nonzero().squeeze(1);
    documents += micro.batch.num_sequences();
    cache_rows = 0;
    for (const ops::NeedLabels& label : labels) {
      utilities.push_back(label.cuts.select(2, kMiddleCut).index_select(0, before).flatten());
      cache_rows += label.cuts.size(1);
    }
  }
  const at::Tensor sorted = std::get<0>(torch::cat(utilities).sort(0, /*descending=*/true));
  std::vector<double> thresholds;
  for (const double budget : budgets) {
    if (!(budget >= 1))
      fail_argument("survival training: a budget must be at least 1, got {}", budget);
    const double wanted = budget * static_cast<double>(documents * cache_rows);
    const int64_t at = std::clamp<int64_t>(std::llround(wanted) - 1, 0, sorted.numel() - 1);
    thresholds.push_back(std::max(sorted[at].item<double>(), double{ops::kNeedFloor} + 1.0));
  }
  return thresholds;
}

}  // namespace coppice
