// `coppice study rank`: every policy at every budget on every task of a plan, then tables and a
// report. Each task is a `coppice eval` of its own with a record file, so a study that was ended
// goes on where it ended, and a task is anything that command can run.

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "apps/folders.h"
#include "apps/runtime.h"
#include "apps/study.h"
#include "apps/usage.h"
#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/eval/record_file.h"
#include "coppice/eviction/policy.h"
#include "coppice/loader/gate_checkpoint.h"
#include "coppice/study/rank_output.h"
#include "coppice/study/rank_plan.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

struct RankFlags {
  std::string out = "rank";
  std::string model = "smollm2";
  std::string gate;
  std::vector<std::string> policies;
  std::vector<int64_t> budgets;
  std::string plan;
  bool quick = false;
  bool restart = false;
  bool print_plan = false;
  bool report_only = false;
  int64_t chunk = 128;
  int64_t threads = 0;
  uint64_t seed = 1;

  std::vector<int64_t> study_budgets() const {
    if (!budgets.empty()) return budgets;
    return quick ? std::vector<int64_t>{32, 128} : std::vector<int64_t>{16, 32, 64, 128, 256, 512};
  }
};

// Every policy that the model can run, but for the full cache, which is always run.
std::vector<std::string> study_policies(const RankFlags& flags) {
  if (!flags.policies.empty()) return flags.policies;
  Checkpoint checkpoint = Checkpoint::open(model_path(flags.model));
  ModelOptions options;
  options.gate = flags.gate;
  const std::string gate = gate_path(options, checkpoint);
  std::vector<std::string> names = policies_for(gate.empty() ? "" : load_gate(gate).spec.kind);
  std::erase(names, "full");
  return names;
}

void add_words(std::vector<std::string>& words, const std::string& flag,
               const std::vector<std::string>& values) {
  words.push_back(flag);
  words.insert(words.end(), values.begin(), values.end());
}

std::string summary_path(const RankFlags& flags, const RankTask& task) {
  return (fs::path(flags.out) / (task.name + ".summary.json")).string();
}

std::vector<std::string> eval_words(const RankFlags& flags, const RankTask& task,
                                    const std::vector<std::string>& policies,
                                    const std::string& data_folder) {
  std::vector<std::string> words = {"eval"};
  const std::vector<std::string> own = task.words(flags.quick, data_folder);
  words.insert(words.end(), own.begin(), own.end());
  const std::vector<int64_t>& preset =
      flags.quick && !task.quick_budgets.empty() ? task.quick_budgets : task.budgets;
  std::vector<std::string> budgets;
  for (const int64_t budget : preset.empty() ? flags.study_budgets() : preset)
    budgets.push_back(fmt::format("{}", budget));
  add_words(words, "--policies", task.policies.empty() ? policies : task.policies);
  add_words(words, "--budgets", budgets);
  add_words(words, "--model", {flags.model});
  if (!flags.gate.empty()) add_words(words, "--gate", {flags.gate});
  add_words(words, "--chunk", {fmt::format("{}", flags.chunk)});
  if (flags.threads > 0) add_words(words, "--threads", {fmt::format("{}", flags.threads)});
  add_words(words, "--seed", {fmt::format("{}", flags.seed)});
  add_words(words, "--out", {(fs::path(flags.out) / (task.name + ".jsonl")).string()});
  add_words(words, "--summary", {summary_path(flags, task)});
  if (flags.restart) words.emplace_back("--restart");
  return words;
}

// Runs one `coppice eval` in this process. Its table goes to stdout as ever.
void run_eval(const RankTask& task, std::vector<std::string> words) {
  CLI::App program("", "coppice");
  add_eval_command(program);
  std::ranges::reverse(words);  // as the parser takes them
  try {
    program.parse(words);
  } catch (const CLI::ParseError& error) {
    fail_argument("task {}: {}{}", task.name, error.what(),
                  std::string(error.what()).find("does not exist") != std::string::npos
                      ? "; `make data` builds the texts"
                      : "");
  }
}

RankResult run_task(const RankFlags& flags, const RankTask& task,
                    const std::vector<std::string>& policies) {
  if (!flags.report_only) {
    std::cout << "== " << task.title << std::endl;
    run_eval(task, eval_words(flags, task, policies, (cache_folder() / "data").string()));
  }
  const std::string summary = summary_path(flags, task);
  RankResult result{.task = task, .summary = {}, .rows = {}, .command = "coppice"};
  // For readers elsewhere: the folder of `make data` by its usual name.
  for (const std::string& word : eval_words(flags, task, policies, "~/.cache/coppice/data"))
    result.command += " " + word;
  result.summary = parse_json(read_text_file(summary), summary);
  result.rows = RecordFile::read((fs::path(flags.out) / (task.name + ".jsonl")).string());
  return result;
}

std::string rank_command(const RankFlags& flags, int64_t budgets_given) {
  std::string text = "coppice study rank --out " + flags.out;
  if (flags.quick) text += " --quick";
  if (flags.model != "smollm2") text += " --model " + flags.model;
  if (!flags.gate.empty()) text += " --gate " + flags.gate;
  for (std::size_t i = 0; i < flags.policies.size(); ++i)
    text += (i == 0 ? " --policies " : " ") + flags.policies[i];
  for (int64_t i = 0; i < budgets_given; ++i)
    text += fmt::format("{}{}", i == 0 ? " --budgets " : " ",
                        flags.budgets[static_cast<std::size_t>(i)]);
  if (!flags.plan.empty()) text += " --plan " + flags.plan;
  if (flags.chunk != 128) text += fmt::format(" --chunk {}", flags.chunk);
  if (flags.threads > 0) text += fmt::format(" --threads {}", flags.threads);
  if (flags.seed != 1) text += fmt::format(" --seed {}", flags.seed);
  return text;
}

void study_rank(const RankFlags& flags) {
  if (flags.print_plan) {
    std::cout << kRankPlan << "\n";
    return;
  }
  const std::vector<RankTask> plan = from_flags([&] {
    return flags.plan.empty() ? parse_rank_plan(kRankPlan, "the study's plan")
                              : parse_rank_plan(read_text_file(flags.plan), flags.plan);
  });
  const std::vector<std::string> policies = from_flags([&] { return study_policies(flags); });
  fs::create_directories(flags.out);
  std::vector<RankResult> results;
  for (const RankTask& task : plan) results.push_back(run_task(flags, task, policies));
  const RankStudy study{.model = fs::path(model_path(flags.model)).filename().string(),
                        .command = rank_command(flags, static_cast<int64_t>(flags.budgets.size())),
                        .quick = flags.quick,
                        .results = std::move(results)};
  const bool png = write_rank_output(study, flags.out);
  std::cout << "report: " << (fs::path(flags.out) / "report.html").string() << "\n";
  if (!png) std::cout << "plots are SVG only: rsvg-convert (librsvg2-bin) is not installed\n";
}

}  // namespace

void add_study_rank(CLI::App& study) {
  auto flags = std::make_shared<RankFlags>();
  CLI::App* app = study.add_subcommand(
      "rank", "every policy at every budget on every task: tables, plots and an HTML report");
  app->add_option("--out", flags->out, "folder; a study that was ended goes on in it")
      ->capture_default_str();
  app->add_option("--model", flags->model,
                  "GGUF file, Hugging Face folder, or smollm2 (the default model)")
      ->capture_default_str();
  app->add_option("--gate", flags->gate,
                  "gate file; 'none' for no gate [the one shipped for the model]");
  app->add_option("--policies", flags->policies, "[all that the model can run]");
  app->add_option("--budgets", flags->budgets,
                  "mean entries per KV head [16 32 64 128 256 512; 32 128 with --quick]")
      ->check(CLI::PositiveNumber);
  app->add_option("--plan", flags->plan, "tasks to measure, as JSON; see --print-plan [built in]")
      ->check(CLI::ExistingFile);
  app->add_flag("--print-plan", flags->print_plan, "print the built-in plan and do nothing else");
  app->add_flag("--quick", flags->quick, "minutes in place of hours: few texts, two budgets");
  app->add_flag("--restart", flags->restart, "begin anew and lose the results in --out");
  app->add_flag("--report-only", flags->report_only,
                "run nothing; write tables and report of what is in --out");
  app->add_option("--chunk", flags->chunk, "tokens read per pass, with eviction after each")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--threads", flags->threads, "threads [every processor available]")
      ->check(CLI::Range(1, 1024));
  app->add_option("--seed", flags->seed, "of policy random, of trials and of intervals")
      ->capture_default_str();
  app->callback([flags] { study_rank(*flags); });
}

}  // namespace coppice
