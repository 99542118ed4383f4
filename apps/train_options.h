// What `coppice train` is asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coppice/train/budget_objective.h"
#include "coppice/train/distill_objective.h"
#include "coppice/train/repeat_objective.h"
#include "coppice/train/survival_objective.h"
#include "coppice/train/trainer.h"

namespace coppice {

struct TrainOptions {
  std::string model = "smollm2";
  std::vector<std::string> data;  // PATH or PATH:WEIGHT
  std::string out;
  std::string dtype = "bfloat16";  // or "float32"
  int64_t threads = 0;             // 0: every processor this process may use
  uint64_t seed = 0;
  bool json = false;

  std::string init_from;                // a gate file; empty: a new gate
  std::string gate_kind = "retention";  // as gate files name it
  std::string variant = "head-row";     // of a retention gate; others are local
  // Unset: what first_gate() takes for the kind.
  std::optional<int64_t> width, hidden_layers;
  std::optional<double> bias;

  int64_t length = 2048;
  int64_t min_tokens = 16;
  int64_t window_rows = 32;
  std::optional<int64_t> total_tokens;  // instead of trainer.steps
  TrainerConfig trainer;
  DistillTraining distill;
  int64_t stage = 2;  // 1: labels from forward passes; 2: end to end; 3: with the cut of serving
  std::string teacher_cache;  // stage 2: folder of the teacher's hidden states; empty: none
  std::string teacher_cache_bytes = "4GiB";
  int64_t teacher_cache_limit = 0;  // of the text above
  BudgetTraining budget;
  std::string train_budgets = "32:512";  // LEAST:MOST or one
  SurvivalTraining survival;
  RepeatTraining repeat;  // of gates of other kinds than retention
  std::vector<double> survival_budgets = {64, 128, 256, 512};
  int64_t calibration_rows = 16;
  std::string capacity = "128";  // M or START:M
  double capacity_ramp = 0.3;

  bool restart = false;
  bool must_resume = false;
  std::string eval_data;
  std::vector<int64_t> eval_budgets = {64, 128, 256};
  int64_t eval_context = 2048;
  int64_t eval_documents = 4;

  std::string command_line;
};

// Trains, and writes the gate. Throws what the parts throw.
void run_training(TrainOptions options);

}  // namespace coppice
