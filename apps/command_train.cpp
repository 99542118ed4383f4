// `coppice train`: fits the retention gates of a frozen model.

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/train_options.h"
#include "apps/usage.h"

namespace coppice {
namespace {

void add_data_options(CLI::App& train, TrainOptions& options) {
  train
      .add_option("--model", options.model,
                  "GGUF file, Hugging Face folder, or smollm2 (the default model)")
      ->capture_default_str();
  train
      .add_option("--data", options.data,
                  "JSON-lines files of documents, each with :WEIGHT (its share of tokens) or "
                  "weighted by size")
      ->required();
  train
      .add_option("--out", options.out,
                  "gate file to write; OUT.state, OUT.log.jsonl and OUT.svg stand beside it")
      ->required();
  train.add_option("--length", options.length, "tokens of a row; longer documents are cut")
      ->check(CLI::Range(16, 1 << 24))
      ->capture_default_str();
  train.add_option("--min-tokens", options.min_tokens, "shorter documents are left out")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  train
      .add_option("--pack-window", options.window_rows,
                  "rows whose documents are packed and shuffled together")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  train.add_option("--seed", options.seed, "of the new gate and of the order of documents")
      ->capture_default_str();
}

void add_gate_options(CLI::App& train, TrainOptions& options) {
  CLI::Option* init = train.add_option("--init-from", options.init_from,
                                       "gate file to start from, instead of a new gate");
  const auto of_new_gate = [&](CLI::Option* option) {
    option->excludes(init)->capture_default_str();
    return option;
  };
  train
      .add_option(
          "--gate-kind", options.gate_kind,
          "retention: how long entries last; kvzap, fastkvzip: what repeating the text looks "
          "at (stage 1)")
      ->check(CLI::IsMember({"retention", "kvzap", "fastkvzip"}))
      ->capture_default_str();
  of_new_gate(train.add_option("--variant", options.variant,
                               "of a retention gate: what layers and heads share"))
      ->check(CLI::IsMember({"shared", "head-row", "local"}));
  of_new_gate(train.add_option("--width", options.width,
                               "of the gate's hidden layers [128; kvzap an eighth of the model's; "
                               "fastkvzip 16, of its heads]"))
      ->check(CLI::Range(1, 1 << 20));
  of_new_gate(train.add_option("--hidden-layers", options.hidden_layers,
                               "of the gate [2; kvzap 1, where 0 is linear]"))
      ->check(CLI::Range(0, 2));
  of_new_gate(
      train.add_option("--bias", options.bias,
                       "of the gate at the start [8: entries fade over e^8 tokens; kvzap -6, "
                       "fastkvzip 0]"));
}

void add_step_options(CLI::App& train, TrainOptions& options) {
  TrainerConfig& trainer = options.trainer;
  CLI::Option* steps = train.add_option("--steps", trainer.steps, "updates in all");
  steps->check(CLI::PositiveNumber)->capture_default_str();
  train
      .add_option("--tokens", options.total_tokens,
                  "tokens in all, instead of --steps: steps of full rows are counted")
      ->check(CLI::PositiveNumber)
      ->excludes(steps);
  train.add_option("--batch-rows", trainer.batch_rows, "rows of one update, over all processes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train.add_option("--micro-rows", trainer.micro_rows, "rows run at a time; gradients add up")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train.add_option("--learning-rate", trainer.schedule.peak)->capture_default_str();
  train.add_option("--last-learning-rate", trainer.schedule.floor, "where the cosine ends")
      ->capture_default_str();
  train.add_option("--warmup", trainer.schedule.warmup, "steps up to the learning rate")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  train.add_option("--weight-decay", trainer.adam.weight_decay)->capture_default_str();
  train.add_option("--clip", trainer.clip_norm, "norm of the gradient at most; 0: any")
      ->capture_default_str();
}

void add_loss_options(CLI::App& train, TrainOptions& options) {
  DistillTraining& distill = options.distill;
  train.add_option("--lambda", distill.lambda, "weight of the capacity term")
      ->capture_default_str();
  train
      .add_option("--capacity", options.capacity,
                  "entries per KV head that the gates are trained for: M, or START:M")
      ->capture_default_str();
  train
      .add_option("--capacity-ramp", options.capacity_ramp,
                  "share of the steps over which START becomes M")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  train
      .add_option_function<std::string>(
          "--capacity-scope",
          [&distill](const std::string& text) {
            distill.scope =
                text == "local" ? ops::CapacityScope::kLocal : ops::CapacityScope::kGlobal;
          },
          "global: all layers and heads share the capacity; local: each has its own")
      ->check(CLI::IsMember({"global", "local"}))
      ->default_str("global");
  train.add_option("--kl-weight", distill.kl_weight)->capture_default_str();
  train.add_option("--ntp-weight", distill.ntp_weight)->capture_default_str();
}

void add_survival_options(CLI::App& train, TrainOptions& options) {
  SurvivalTraining& survival = options.survival;
  train
      .add_option(
          "--stage", options.stage,
          "2: end to end, by beta^age; 3: end to end, with the cut that budgets make; 1: how "
          "long entries are needed, from forward passes alone, as a start for 2 or 3 (with "
          "--init-from)")
      ->check(CLI::Range(1, 3))
      ->capture_default_str();
  train
      .add_option("--survival-budgets", options.survival_budgets,
                  "stage 1: entries per KV head at which an entry counts as needed")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train.add_option("--updates", survival.updates, "stage 1: steps on the same rows")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train
      .add_option("--update-tokens", survival.tokens_per_update,
                  "stage 1: tokens drawn from a row for each step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train.add_option("--pair-weight", survival.pair_weight, "stage 1: weight of the ranking term")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  train
      .add_option("--calibration-rows", options.calibration_rows,
                  "stage 1: rows from which the thresholds of need are taken")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train
      .add_option_function<std::string>(
          "--utility",
          [&survival](const std::string& text) {
            survival.utility = text == "loo"    ? ops::NeedUtility::kLeaveOneOut
                               : text == "attv" ? ops::NeedUtility::kAttentionValue
                                                : ops::NeedUtility::kAttention;
          },
          "stage 1: what an entry is worth to a query: loo (change of the output without it), "
          "attv (weight x value) or att (weight)")
      ->check(CLI::IsMember({"loo", "attv", "att"}))
      ->default_str("loo");
}

void add_budget_options(CLI::App& train, TrainOptions& options) {
  train
      .add_option("--budgets", options.train_budgets,
                  "stage 3: entries per KV head that documents draw: LEAST:MOST, or one for all")
      ->capture_default_str();
  train
      .add_option("--sharpness", options.budget.sharpness, "stage 3: of the cut: 2, 4, 8, 16 or 32")
      ->check(CLI::IsMember({2, 4, 8, 16, 32}))
      ->capture_default_str();
  train
      .add_option("--sinks", options.budget.sinks,
                  "stage 3: first tokens of a document that are always kept")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void add_running_options(CLI::App& train, TrainOptions& options) {
  TrainerConfig& trainer = options.trainer;
  train.add_option("--save-every", trainer.save_every, "steps between states; 0: at the end alone")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  CLI::Option* restart =
      train.add_flag("--restart", options.restart, "begin anew, whatever state there is");
  train
      .add_flag("--resume", options.must_resume,
                "refuse to begin anew [go on when there is a state]")
      ->excludes(restart);
  CLI::Option* data = train.add_option("--eval-data", options.eval_data,
                                       "JSON-lines file of documents that are not trained on");
  data->check(CLI::ExistingFile);
  train
      .add_option("--eval-every", trainer.eval_every,
                  "steps between evaluations with real eviction; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->needs(data)
      ->capture_default_str();
  train.add_option("--eval-budgets", options.eval_budgets, "entries per KV head")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train.add_option("--eval-context", options.eval_context, "tokens of each document evaluated")
      ->check(CLI::Range(8, 1 << 24))
      ->capture_default_str();
  train.add_option("--eval-documents", options.eval_documents, "how many")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  train.add_option("--dtype", options.dtype, "of weights and activations; gates are float32")
      ->check(CLI::IsMember({"bfloat16", "float32"}))
      ->capture_default_str();
  CLI::Option* cache = train.add_option(
      "--teacher-cache", options.teacher_cache,
      "stage 2: folder that keeps the frozen model's hidden states for further passes and runs");
  train.add_option("--teacher-cache-bytes", options.teacher_cache_bytes, "most that it may hold")
      ->needs(cache)
      ->capture_default_str();
  train.add_flag("--recompute", options.distill.recompute,
                 "keep one layer's activations at a time: less memory, a third more time");
  train.add_option("--device", "where to run")->check(CLI::IsMember({"cpu"}))->default_str("cpu");
  train.add_option("--threads", options.threads, "threads [every processor available]")
      ->check(CLI::Range(1, 1024));
  train.add_flag("--json", options.json, "print one JSON object on stdout");
}

std::string read_stream(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// libtorch's threads spin between two operations, for milliseconds, on processors that our own pool
// or a neighbour could use: on two busy cores that makes training three times slower. How long is
// read from the environment before main() begins, so the program starts itself anew once.
void shorten_spinning() {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "2000", 1);  // some tens of microseconds
  const std::string words = read_stream("/proc/self/cmdline");
  std::vector<char*> arguments;
  for (std::size_t at = 0; at < words.size(); at += std::strlen(words.c_str() + at) + 1)
    arguments.push_back(const_cast<char*>(words.c_str() + at));
  arguments.push_back(nullptr);
  if (arguments.size() > 1) ::execv("/proc/self/exe", arguments.data());
}

}  // namespace

void add_train_command(CLI::App& program) {
  CLI::App* train = program.add_subcommand("train", "fit retention gates of a frozen model");
  auto options = std::make_shared<TrainOptions>();
  options->trainer.batch_rows = 4;
  options->trainer.schedule.warmup = 50;
  add_data_options(*train, *options);
  add_gate_options(*train, *options);
  add_step_options(*train, *options);
  add_loss_options(*train, *options);
  add_budget_options(*train, *options);
  add_survival_options(*train, *options);
  add_running_options(*train, *options);
  train->callback([options, &program] {
    shorten_spinning();
    options->command_line = "coppice train";
    for (const CLI::Option* option : program.get_subcommand("train")->get_options())
      if (option->count() > 0)
        options->command_line +=
            fmt::format(" {} {}", option->get_name(), fmt::join(option->results(), " "));
    run_training(*options);
  });
}

}  // namespace coppice
