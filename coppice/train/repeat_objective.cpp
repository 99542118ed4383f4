#include "coppice/train/repeat_objective.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/models/model.h"
#include "coppice/train/label_pass.h"

namespace coppice {
namespace {

at::Tensor squared_error(const at::Tensor& score, const at::Tensor& label) {
  return (score - label).square().mean();
}

// Of probabilities given by their logs: -(s ln p + (1 - s) ln(1 - p)).
at::Tensor log_cross_entropy(const at::Tensor& score, const at::Tensor& label) {
  const at::Tensor s = label.exp();
  const at::Tensor below = score.clamp_max(-1e-6);  // ln(1 - p) stays finite
  const at::Tensor rest = (-torch::expm1(below)).log();
  return -(s * score + (1.0 - s) * rest).mean();
}

constexpr RepeatTarget kTargets[] = {
    {"kvzap", ops::NeedUtility::kAttentionValue, /*between_asks=*/false, squared_error},
    {"fastkvzip", ops::NeedUtility::kAttention, /*between_asks=*/true, log_cross_entropy}};

// Documents of a batch, each read twice, and where things are.
struct Doubled {
  Batch batch;
  std::vector<int64_t> asked_from;  // of each document: the first query that counts
  at::Tensor first_copies;          // [N] int64: places of the original tokens
};

Doubled doubled(const Batch& batch, const RepeatTraining& options, bool between_asks) {
  Doubled result;
  std::vector<at::Tensor> ids, positions, copies;
  const at::Tensor before = torch::tensor(options.before, torch::kLong);
  const at::Tensor between = torch::tensor(options.between, torch::kLong);
  int64_t at = 0;
  result.batch.cu_seqlens = {0};
  for (std::size_t b = 0; b + 1 < batch.cu_seqlens.size(); ++b) {
    const int64_t begin = batch.cu_seqlens[b], size = batch.cu_seqlens[b + 1] - begin;
    const at::Tensor document = batch.token_ids.slice(0, begin, begin + size);
    for (const at::Tensor& part : {before, document, between, document}) ids.push_back(part);
    const int64_t first = before.numel();
    copies.push_back(torch::arange(at + first, at + first + size, torch::kLong));
    result.asked_from.push_back(first + size + (between_asks ? 0 : between.numel()));
    const int64_t whole = first + between.numel() + 2 * size;
    positions.push_back(torch::arange(whole, torch::kLong));
    at += whole;
    result.batch.cu_seqlens.push_back(at);
    result.batch.sequence_ids.push_back(static_cast<int64_t>(b));
  }
  result.batch.token_ids = torch::cat(ids);
  result.batch.positions = torch::cat(positions);
  result.first_copies = torch::cat(copies);
  return result;
}

// Squared correlation of two [n, L, Hkv], the mean of heads; 0 where one of them does not vary.
double squared_correlation(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a - a.mean(0, /*keepdim=*/true), y = b - b.mean(0, /*keepdim=*/true);
  const at::Tensor both = (x * y).sum(0);
  const at::Tensor size = (x.square().sum(0) * y.square().sum(0)).clamp_min(1e-20);
  return (both.square() / size).mean().item<double>();
}

}  // namespace

void RepeatTraining::validate() const {
  if (between.empty()) fail_argument("repeat training: nothing asks for the repetition");
  if (updates < 1 || tokens_per_update < 1)
    fail_argument("repeat training: expected updates and tokens above 0, got {} and {}", updates,
                  tokens_per_update);
}

const RepeatTarget& repeat_target(std::string_view kind) {
  for (const RepeatTarget& target : kTargets)
    if (target.kind == kind) return target;
  fail_argument(
      "repeat training: a {} gate is not fitted to repetitions; expected kvzap or "
      "fastkvzip",
      kind.empty() ? "missing" : kind);
}

RepeatLabels repeat_labels(Model& model, const Batch& batch, const RepeatTraining& options,
                           const RepeatTarget& target) {
  const torch::NoGradGuard no_gradient;
  const Doubled twice = doubled(batch, options, target.between_asks);
  const int64_t range = model.args().max_position_embeddings;
  const int64_t longest = twice.batch.positions.max().item<int64_t>() + 1;
  if (longest > range)
    fail(ErrorCode::kCapacity,
         "repeat training: a repeated document of {} tokens passes the model's {} positions",
         longest, range);
  RepeatLabels result;
  std::vector<at::Tensor> labels;
  LabelPass pass(model, [&](ops::NeedInput& need, const at::Tensor& normed) {
    need.residual_norm = normed.to(at::kFloat).norm(2, {1});
    need.utility = target.utility;
    need.cut_at = twice.asked_from;
    labels.push_back(ops::need_labels(need).cuts.select(2, 0).index_select(0, twice.first_copies));
    result.inputs.push_back(normed.index_select(0, twice.first_copies));
  });
  model.forward(twice.batch, pass);
  result.labels = torch::stack(labels, 1);
  return result;
}

RepeatObjective::RepeatObjective(Model& model, const RepeatTraining& options)
    : options_(options), target_(repeat_target(model.gate_kind())) {
  options_.validate();
  LabelPass::check(model);
}

void RepeatObjective::accumulate(Model& model, const MicroBatch& micro, const StepInfo& step,
                                 Measures& measures) {
  auto slot = features_.find(micro.index);
  if (slot == features_.end())
    slot =
        features_.emplace(micro.index, repeat_labels(model, micro.batch, options_, target_)).first;
  const RepeatLabels& features = slot->second;
  const int64_t tokens = micro.batch.num_tokens();
  Rng rng(mix_seed(options_.seed, static_cast<uint64_t>(step.step),
                   static_cast<uint64_t>(micro.index)));
  const at::Tensor chosen = draw_places(std::min(tokens, options_.tokens_per_update), tokens, rng);
  const at::Tensor score = gate_outputs(model, [&](std::size_t layer) {
    return features.inputs[layer].index_select(0, chosen).to(at::kFloat);
  });
  const at::Tensor label = features.labels.index_select(0, chosen);
  const at::Tensor loss = target_.loss(score, label);
  const double value = loss.item<double>();
  if (!std::isfinite(value))
    throw NotFinite(fmt::format("step {}: the loss of repeating is not finite; documents: {}",
                                step.step + 1, fmt::join(micro.labels, "; ")));
  const auto weight = static_cast<double>(tokens);
  (loss * (weight / static_cast<double>(step.tokens))).backward();
  measures.add("loss", value, weight);
  measures.add("repeat", value, weight);
  measures.add("r2", squared_correlation(score.detach(), label), weight);
  measures.add("mean_score", score.detach().mean().item<double>(), weight);
}

}  // namespace coppice
