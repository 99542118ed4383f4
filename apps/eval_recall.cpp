// `coppice eval recall`: facts hidden in real text, asked for at the end.

#include <memory>

#include "apps/eval_texts.h"
#include "coppice/eval/recall.h"

namespace coppice {
namespace {

struct RecallFlags {
  GridOptions grid;
  std::vector<std::string> texts;
  std::vector<std::string> asking = {"unseen"};
  RecallOptions task;
};

}  // namespace

void add_eval_recall(CLI::App& eval) {
  auto flags = std::make_shared<RecallFlags>();
  RecallOptions& task = flags->task;
  CLI::App* app = eval.add_subcommand(
      "recall", "facts hidden in real text and asked for at the end, for policies and budgets");
  add_grid_options(*app, flags->grid);
  app->add_option("--text", flags->texts,
                  "real text to hide facts in: UTF-8 files, or documents in *.jsonl")
      ->required()
      ->check(CLI::ExistingFile);
  app->add_option("--lengths", task.lengths, "tokens of a text, at most")
      ->check(CLI::Range(64, 1 << 30))
      ->capture_default_str();
  app->add_option("--trials", task.trials, "questions asked at each length")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--questions", task.questions,
                  "facts hidden in one text, each of which is asked for")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--question", flags->asking,
                  "unseen when the text is evicted and each asked apart, seen, both (two columns), "
                  "or in-turn: one after the other in the same cache")
      ->capture_default_str();
  app->add_option("--answer-tokens", task.answer_tokens, "tokens of an answer, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->callback([flags] {
    eval_on_texts<RecallTask>(flags->grid, flags->texts, flags->asking, flags->task);
  });
}

}  // namespace coppice
