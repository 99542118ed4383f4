// The training loop: rows in, gradients, steps, logs and states out.
//
// Only the parameters handed over are changed. One seed and one set of options give one run:
// stopped and resumed at any step it continues bit for bit on the CPU, with any number of stops.
// Each step is `batch_rows` rows; they are run `micro_rows` at a time and shared out between the
// processes of `collective`, which changes the order of sums and nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/train/collective.h"
#include "coppice/train/objective.h"
#include "coppice/train/optimizer.h"
#include "coppice/train/packer.h"
#include "coppice/train/train_log.h"

namespace coppice {

struct TrainerConfig {
  int64_t steps = 1000;
  int64_t batch_rows = 1;
  int64_t micro_rows = 1;  // divides batch_rows
  Schedule schedule;       // its `steps` follows `steps`
  AdamOptions adam;
  double clip_norm = 1.0;   // 0: never
  int64_t save_every = 50;  // steps; 0: at the end alone
  int64_t eval_every = 0;   // steps; 0: never
  std::string state_path;   // empty: no states
  std::string log_path;     // empty: no log
  // What else determines the run: data, model, gate, seed, objective. A state whose record differs
  // is refused.
  Json identity = Json::object();

  // Throws kInvalidArgument naming what is out of range.
  void validate() const;
  Json json() const;  // with `identity`, and without what changes no step: paths and intervals
};

// What goes on around the loop. Each may be empty.
struct TrainerHooks {
  std::function<void(const Json& record)> on_step;  // after each step, its log record
  std::function<Json(int64_t step)> evaluate;       // -> what the log is to hold
  std::function<void(int64_t step, int64_t tokens, double seconds)> on_save;  // before the state
  const std::atomic<bool>* stop = nullptr;  // when true: save and return
};

class Trainer final {
 public:
  // All must outlive the trainer.
  Trainer(Model& model, Packer& packer, Objective& objective, Collective& collective,
          const TrainerConfig& config, TrainerHooks hooks = {});

  // Goes on from the state at config.state_path. Throws as load_state and check_same_run.
  void resume();

  // Until config.steps are done or a stop is asked for. -> whether all are done. Throws NotFinite
  // with the step, the documents and the layer; the last state then stays as it was.
  bool run();

  int64_t step() const { return step_; }  // done
  int64_t tokens() const { return tokens_; }
  double seconds() const { return seconds_; }
  AdamW& optimizer() { return optimizer_; }

 private:
  void one_step();
  void fetch_rows();
  void check_gradient(double norm) const;
  void save();
  bool stop_asked();

  Model& model_;
  Packer& packer_;
  Objective& objective_;
  Collective& collective_;
  TrainerConfig config_;
  TrainerHooks hooks_;
  AdamW optimizer_;
  // The rows in hand, which serve objective_.steps_per_batch() steps.
  std::vector<MicroBatch> micro_;    // of this process
  StepInfo rows_info_;               // their tokens and targets, over all processes
  std::vector<std::string> labels_;  // of all their documents
  Json rows_state_;                  // of the packer, before they were taken

  int64_t step_ = 0;
  int64_t tokens_ = 0;
  double seconds_ = 0.0;
  int64_t saved_step_ = -1;
  std::unique_ptr<TrainLog> log_;
};

}  // namespace coppice
