// What the evaluations of a grid of policies and budgets share: flags, the loaded model, the record
// file, progress, and the report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/runtime.h"
#include "coppice/eval/eval_task.h"

namespace coppice {

struct GridOptions {
  ModelOptions model;
  std::vector<std::string> policies;  // empty: all that the model can run, one of the gated ones
  std::vector<int64_t> budgets = {16, 32, 64, 128, 256, 512};
  std::string out;
  std::string summary;  // file for the summary as JSON; empty: none
  bool restart = false;
  uint64_t seed = 1;
};

void add_grid_options(CLI::App& app, GridOptions& options);

// A model to run grids on. `options` must outlive it.
class EvalGrid final {
 public:
  explicit EvalGrid(const GridOptions& options);

  const Runtime& runtime() const { return runtime_; }
  EvalModel model() const;
  // Runs the task, or what its file lacks, and prints the summary. data_sha256: of what the task
  // reads.
  void run(EvalTask& task, const std::string& data_sha256) const;

 private:
  std::vector<std::string> policies() const;
  Json config(const EvalTask& task, const std::string& data_sha256) const;

  const GridOptions& options_;
  Runtime runtime_;
  std::string model_sha256_;
  std::string gate_sha256_;   // empty: no gate
  std::string gate_variant_;  // as GateSpec
};

// Each adds itself to `coppice eval`.
void add_eval_held_out(CLI::App& eval);
void add_eval_agreement(CLI::App& eval);
void add_eval_recall(CLI::App& eval);
void add_eval_ruler(CLI::App& eval);
void add_eval_kept(CLI::App& eval);
void add_eval_cost(CLI::App& eval);

}  // namespace coppice
