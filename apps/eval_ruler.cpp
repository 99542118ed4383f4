// `coppice eval ruler`: RULER's synthetic tasks at any length, under a grid of policies and
// budgets.

#include <memory>

#include "apps/eval_texts.h"
#include "coppice/eval/ruler.h"

namespace coppice {
namespace {

struct RulerFlags {
  GridOptions grid;
  std::vector<std::string> texts;
  std::vector<std::string> asking = {"unseen"};
  RulerOptions task;
};

}  // namespace

void add_eval_ruler(CLI::App& eval) {
  auto flags = std::make_shared<RulerFlags>();
  CLI::App* app = eval.add_subcommand(
      "ruler", "needles, variables and word counts of any length, under a grid of budgets");
  RulerOptions& task = flags->task;
  app->add_option("--text", flags->texts,
                  "real text to hide facts in and to take words from: UTF-8 files, or *.jsonl as "
                  "`coppice train` reads")
      ->required()
      ->check(CLI::ExistingFile);
  app->add_option("--kinds", task.kinds,
                  "single, multi-key, multi-value, multi-query, variables, common-words, "
                  "frequent-words [all]");
  app->add_option("--lengths", task.lengths, "tokens of a prompt with its question, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--trials", task.trials, "prompts of each kind, length and way to ask")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--question", flags->asking,
                  "unseen when the text is evicted, seen, or both (two columns)")
      ->capture_default_str();
  add_grid_options(*app, flags->grid);
  app->callback(
      [flags] { eval_on_texts<RulerTask>(flags->grid, flags->texts, flags->asking, flags->task); });
}

}  // namespace coppice
