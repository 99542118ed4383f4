// The parts of a training run, put together.

#include <ATen/Parallel.h>
#include <malloc.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <iostream>

#include "apps/runtime.h"
#include "apps/train_evaluation.h"
#include "apps/train_options.h"
#include "apps/train_progress.h"
#include "apps/train_setup.h"
#include "apps/usage.h"
#include "coppice/core/log.h"
#include "coppice/core/rng.h"
#include "coppice/engine/load_text.h"
#include "coppice/ops/parallel.h"
#include "coppice/train/plot.h"
#include "coppice/train/teacher_cache.h"
#include "coppice/train/training_state.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> stop_asked = false;

// The first signal ends the run after its step, with a state; the second one at once.
void ask_to_stop(int signal) {
  stop_asked = true;
  std::signal(signal, SIG_DFL);
}

void catch_signals() {
  stop_asked = false;
  std::signal(SIGINT, ask_to_stop);
  std::signal(SIGTERM, ask_to_stop);
  std::signal(SIGXFSZ, SIG_IGN);  // a file above the limit is a failed write, and no end
}

void set_training_threads(const TrainOptions& options) {
  // Activations come and go by the hundred; given back to the system each time, their pages would
  // cost more than some of the sums done on them.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  if (options.threads > 0) ops::set_num_threads(static_cast<int>(options.threads));
  at::set_num_threads(ops::num_threads());
}

// Everything one run needs, in the order in which it is made.
class TrainingRun final {
 public:
  explicit TrainingRun(TrainOptions options)
      : options_(std::move(options)),
        collective_(make_from_environment()),
        checkpoint_(Checkpoint::open(model_path(options_.model))),
        tokenizer_(load_tokenizer(checkpoint_)),
        template_(find_template(checkpoint_, tokenizer_)),
        data_(open_data(options_)),
        encoder_(tokenizer_, template_ ? &*template_ : nullptr),
        stream_(
            data_.files, data_.weights, encoder_,
            {.length = options_.length, .min_tokens = options_.min_tokens, .seed = options_.seed}),
        packer_(stream_, options_.length, options_.window_rows, options_.seed),
        first_(first_gate(options_, checkpoint_)) {
    set_training_threads(options_);
    const WeightMode mode =
        options_.dtype == "float32" ? WeightMode::kFloat32 : WeightMode::kBFloat16;
    model_ = load_model(checkpoint_, mode, &first_);
    const int64_t range = model_->args().max_position_embeddings;
    if (options_.length > range)
      fail(ErrorCode::kCapacity, "--length {} passes the model's {} positions", options_.length,
           range);
    objective_ = make_objective();
    if (!options_.eval_data.empty() && options_.trainer.eval_every > 0)
      evaluation_.emplace(options_, checkpoint_, encoder_);
  }

  void run() {
    TrainerConfig config = options_.trainer;
    if (options_.total_tokens)
      config.steps =
          std::max<int64_t>(1, *options_.total_tokens / (options_.length * config.batch_rows));
    config.state_path = options_.out + ".state";
    config.log_path = options_.out + ".log.jsonl";
    config.identity = run_identity(options_, data_, checkpoint_, first_.spec);
    Progress progress(config.steps);
    TrainerHooks hooks;
    hooks.on_step = [&](const Json& record) { progress.show(record); };
    hooks.on_save = [&](int64_t, int64_t, double) { write_gate(config); };
    hooks.stop = &stop_asked;
    if (evaluation_)
      hooks.evaluate = [&](int64_t step) {
        const Json found = evaluation_->run(read_gate(*model_, first_.spec));
        progress.show_evaluation(step, found);
        return found;
      };
    Trainer trainer(*model_, packer_, *objective_, *collective_, config, hooks);
    start(trainer, config, progress);
    const bool done = trainer.run();
    if (collective_->rank() == 0) finish(trainer, config, done);
  }

 private:
  void start(Trainer& trainer, const TrainerConfig& config, Progress& progress) {
    std::error_code ignored;
    const bool there = fs::exists(config.state_path, ignored);
    if (options_.must_resume && !there)
      fail(ErrorCode::kNotFound, "--resume: there is no {}", config.state_path);
    if (collective_->rank() == 0)
      for (const std::string& path : {config.state_path, config.log_path, options_.out})
        remove_drafts(path);
    if (there && !options_.restart) trainer.resume();
    if (collective_->rank() == 0)
      progress.begin(trainer.step(), trainer.optimizer().values().numel(), data_.manifest);
  }

  std::unique_ptr<Objective> make_objective() {
    if (options_.gate_kind != "retention") {
      set_repeat_request(options_.repeat, tokenizer_, template_ ? &*template_ : nullptr);
      return std::make_unique<RepeatObjective>(*model_, options_.repeat);
    }
    if (options_.stage == 2) {
      if (!options_.teacher_cache.empty())
        teacher_cache_.emplace(options_.teacher_cache, options_.teacher_cache_limit,
                               checkpoint_.sha256() + " " + options_.dtype);
      return std::make_unique<DistillObjective>(*model_, options_.distill,
                                                teacher_cache_ ? &*teacher_cache_ : nullptr);
    }
    if (options_.stage == 3) {
      options_.budget.seed = options_.seed;
      return std::make_unique<BudgetObjective>(*model_, options_.budget);
    }
    DocumentStream stream(data_.files, data_.weights, encoder_,
                          {.length = options_.length,
                           .min_tokens = options_.min_tokens,
                           .seed = mix_seed(options_.seed, 0xca1b)});
    Packer packer(stream, options_.length, options_.window_rows, options_.seed);
    std::vector<Row> rows;
    for (int64_t i = 0; i < options_.calibration_rows; ++i) rows.push_back(packer.next());
    SurvivalTraining survival = options_.survival;
    survival.seed = options_.seed;
    survival.log_thresholds =
        calibrate_thresholds(*model_, rows, options_.survival_budgets, survival.utility);
    return std::make_unique<SurvivalObjective>(*model_, survival);
  }

  void write_gate(const TrainerConfig& config) {
    GateWeights gate = read_gate(*model_, first_.spec);
    gate.spec.training = training_record(options_, data_, last_steps(read_log(config.log_path), 50),
                                         config.json(), first_.spec.training);
    save_gate(options_.out, gate, StorageType::kBF16);
  }

  void finish(const Trainer& trainer, const TrainerConfig& config, bool done) {
    const std::vector<Json> records = read_log(config.log_path);
    write_plot(options_.out + ".svg", records);
    if (!done)
      fail(ErrorCode::kInvalidArgument,
           "stopped after step {} of {}; the state is in {}, and the same command goes on from it",
           trainer.step(), config.steps, config.state_path);
    write_gate(config);
    const Json last = last_steps(records, 50);
    if (options_.json) {
      std::cout << dump_json({{"gate", options_.out},
                              {"steps", trainer.step()},
                              {"tokens", trainer.tokens()},
                              {"seconds", trainer.seconds()},
                              {"last_steps", last}})
                << "\n";
      return;
    }
    std::string numbers;
    for (const char* key : {"kl", "ntp", "capacity", "survival", "pair", "repeat", "r2"})
      if (last.contains(key)) numbers += fmt::format(", {} {:.4f}", key, last.value(key, 0.0));
    std::cout << fmt::format("{}: {} steps, {} tokens, {:.2f} hours{}\n", options_.out,
                             trainer.step(), trainer.tokens(), trainer.seconds() / 3600, numbers);
  }

  TrainOptions options_;
  std::unique_ptr<Collective> collective_;
  Checkpoint checkpoint_;
  Tokenizer tokenizer_;
  std::optional<ChatTemplate> template_;
  TrainData data_;
  DocumentEncoder encoder_;
  DocumentStream stream_;
  Packer packer_;
  GateWeights first_;
  std::shared_ptr<Model> model_;
  std::optional<TeacherCache> teacher_cache_;
  std::unique_ptr<Objective> objective_;
  std::optional<TrainEvaluation> evaluation_;
};

}  // namespace

void run_training(TrainOptions options) {
  from_flags([&options] {
    read_capacity(options);
    read_budgets(options);
    read_teacher_cache(options);
    read_gate_kind(options);
    options.trainer.validate();
    options.distill.validate();
    options.budget.validate();
  });
  catch_signals();
  TrainingRun(std::move(options)).run();
}

}  // namespace coppice
