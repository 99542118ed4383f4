#include "coppice/train/trainer.h"

#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <sstream>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/models/model.h"
#include "coppice/train/training_state.h"

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<NamedParameter> trained_parameters(Model& model, Objective& objective) {
  for (at::Tensor& parameter : model.parameters()) parameter.requires_grad_(false);
  std::vector<NamedParameter> parameters = gate_parameters(model);
  for (NamedParameter& own : objective.parameters()) parameters.push_back(own);
  return parameters;
}

}  // namespace

void TrainerConfig::validate() const {
  const auto check = [](bool good, const char* what, double got) {
    if (!good) fail_argument("training: {}, got {}", what, got);
  };
  check(steps >= 1, "expected at least 1 step", static_cast<double>(steps));
  check(batch_rows >= 1, "expected at least 1 row a step", static_cast<double>(batch_rows));
  check(micro_rows >= 1 && batch_rows % micro_rows == 0,
        "rows at a time must divide the rows of a step", static_cast<double>(micro_rows));
  check(schedule.peak > 0 && std::isfinite(schedule.peak), "the learning rate must be above 0",
        schedule.peak);
  check(schedule.floor >= 0 && schedule.floor <= schedule.peak,
        "the last learning rate must be from 0 to the peak", schedule.floor);
  check(schedule.warmup >= 0, "warm-up steps must be 0 or more",
        static_cast<double>(schedule.warmup));
  check(adam.weight_decay >= 0, "weight decay must be 0 or more", adam.weight_decay);
  check(adam.beta1 >= 0 && adam.beta1 < 1 && adam.beta2 >= 0 && adam.beta2 < 1,
        "the optimizer's betas must be in [0, 1)", adam.beta2);
  check(clip_norm >= 0, "the norm to clip at must be 0 or more", clip_norm);
  check(save_every >= 0 && eval_every >= 0, "intervals must be 0 or more",
        static_cast<double>(std::min(save_every, eval_every)));
}

Json TrainerConfig::json() const {
  Json json = identity;
  json["steps"] = steps;
  json["batch_rows"] = batch_rows;
  json["micro_rows"] = micro_rows;
  json["learning_rate"] = schedule.peak;
  json["last_learning_rate"] = schedule.floor;
  json["warmup"] = schedule.warmup;
  json["weight_decay"] = adam.weight_decay;
  json["adam"] = {adam.beta1, adam.beta2, adam.eps};
  json["clip_norm"] = clip_norm;
  return json;
}

Trainer::Trainer(Model& model, Packer& packer, Objective& objective, Collective& collective,
                 const TrainerConfig& config, TrainerHooks hooks)
    : model_(model),
      packer_(packer),
      objective_(objective),
      collective_(collective),
      config_(config),
      hooks_(std::move(hooks)),
      optimizer_(trained_parameters(model, objective), config.adam) {
  config_.schedule.steps = config_.steps;
  config_.validate();
  const int64_t micro_batches = config_.batch_rows / config_.micro_rows;
  if (micro_batches % collective_.size() != 0)
    fail_argument("training: {} micro-batches a step cannot be shared out evenly to {} processes",
                  micro_batches, collective_.size());
}

void Trainer::resume() {
  const TrainingState state = load_state(config_.state_path, optimizer_);
  check_same_run(state.config, config_.json(), config_.state_path);
  packer_.restore(state.data);
  step_ = saved_step_ = state.step;
  tokens_ = state.tokens;
  seconds_ = state.seconds;
}

bool Trainer::run() {
  const bool first = collective_.rank() == 0;
  if (first && !config_.log_path.empty() && !log_)
    log_ = std::make_unique<TrainLog>(config_.log_path, step_);
  model_.eval();
  while (step_ < config_.steps) {
    one_step();
    const bool stop = stop_asked();
    const bool due = config_.save_every > 0 && step_ % config_.save_every == 0;
    if (due || stop || step_ == config_.steps) save();
    const bool evaluate = config_.eval_every > 0 && step_ % config_.eval_every == 0;
    if (evaluate && first && hooks_.evaluate) {
      const Json found = hooks_.evaluate(step_);
      if (log_) log_->write({{"step", step_}, {"eval", found}});
    }
    if (stop && step_ < config_.steps) return false;
  }
  return true;
}

void Trainer::fetch_rows() {
  rows_state_ = packer_.state();
  micro_.clear();
  labels_.clear();
  rows_info_ = {0, config_.steps, 0, 0};
  objective_.begin_batch();
  for (int64_t m = 0; m < config_.batch_rows / config_.micro_rows; ++m) {
    Row row;
    for (int64_t r = 0; r < config_.micro_rows; ++r) append_row(row, packer_.next());
    rows_info_.tokens += static_cast<int64_t>(row.tokens.size());
    rows_info_.targets += row.num_targets();
    labels_.insert(labels_.end(), row.labels.begin(), row.labels.end());
    if (m % collective_.size() != collective_.rank()) continue;
    micro_.push_back(make_micro_batch(row));
    micro_.back().index = std::ssize(micro_) - 1;
  }
}

void Trainer::one_step() {
  const Clock::time_point begin = Clock::now();
  const bool fresh = step_ % objective_.steps_per_batch() == 0;
  if (fresh || micro_.empty()) fetch_rows();
  StepInfo info = rows_info_;
  info.step = step_;

  optimizer_.zero_gradients();
  Measures measures;
  for (const MicroBatch& micro : micro_) objective_.accumulate(model_, micro, info, measures);
  if (collective_.size() > 1) {
    collective_.sum(optimizer_.gradients());
    at::Tensor packed = measures.pack();
    collective_.sum(packed);
    measures.unpack(packed);
  }
  const double norm = optimizer_.clip(config_.clip_norm);
  check_gradient(norm);
  const double rate = config_.schedule.at(step_);
  optimizer_.step(rate);

  ++step_;
  if (fresh) tokens_ += info.tokens;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  seconds_ += seconds;
  Json record = measures.json();
  record["step"] = step_;
  record["learning_rate"] = rate;
  record["gradient_norm"] = norm;
  record["step_tokens"] = info.tokens;
  record["targets"] = info.targets;
  record["tokens"] = tokens_;
  record["tokens_per_s"] = static_cast<double>(info.tokens) / seconds;
  record["seconds"] = seconds_;
  if (log_) log_->write(record);
  if (hooks_.on_step && collective_.rank() == 0) hooks_.on_step(record);
}

void Trainer::check_gradient(double norm) const {
  if (std::isfinite(norm)) return;
  std::istringstream layout(optimizer_.layout());
  std::string name, where = "none alone, but their norm";
  int64_t at = 0, count = 0;
  while (layout >> name >> count) {
    const at::Tensor part = const_cast<AdamW&>(optimizer_).gradients().narrow(0, at, count);
    if (!part.isfinite().all().item<bool>()) {
      where = name;
      break;
    }
    at += count;
  }
  throw NotFinite(fmt::format("step {}: the gradient is not finite; first in {}; documents: {}",
                              step_ + 1, where, fmt::join(labels_, "; ")));
}

// One process that was asked is enough; all must agree, or they would wait for each other.
bool Trainer::stop_asked() {
  const bool asked = hooks_.stop != nullptr && hooks_.stop->load();
  if (collective_.size() == 1) return asked;
  at::Tensor votes = torch::full({1}, asked ? 1.0 : 0.0, torch::kDouble);
  collective_.sum(votes);
  return votes.item<double>() > 0;
}

void Trainer::save() {
  if (collective_.rank() != 0 || saved_step_ == step_) return;
  // One that cannot be written does not keep the other from being written.
  const auto attempt = [this](const char* what, const auto& write) {
    try {
      write();
    } catch (const Error& error) {
      log_warning("step {}: {} could not be saved, the one before it stays: {}", step_, what,
                  error.what());
    }
  };
  if (hooks_.on_save) attempt("the gate", [this] { hooks_.on_save(step_, tokens_, seconds_); });
  if (config_.state_path.empty()) return;
  // In the middle of its rows' steps a resumed run has to take the same rows again.
  const bool between = step_ % objective_.steps_per_batch() == 0;
  const Json data = between ? packer_.state() : rows_state_;
  attempt("the state", [&] {
    save_state(config_.state_path, {config_.json(), data, step_, tokens_, seconds_}, optimizer_);
    saved_step_ = step_;
  });
}

}  // namespace coppice
