// `coppice eval talk`: facts told early in a talk and asked for at its end, under a grid of
// policies and budgets.

#include <memory>

#include "apps/eval_texts.h"
#include "coppice/eval/talk.h"

namespace coppice {
namespace {

struct TalkFlags {
  GridOptions grid;
  std::vector<std::string> texts;
  std::vector<std::string> asking = {"unseen"};
  TalkOptions task = {.lengths = {2000, 4000}, .questions = 2};
};

}  // namespace

void add_eval_talk(CLI::App& eval) {
  auto flags = std::make_shared<TalkFlags>();
  CLI::App* app = eval.add_subcommand(
      "talk", "facts told early in a talk of many turns, under a grid of budgets");
  TalkOptions& task = flags->task;
  app->add_option("--text", flags->texts,
                  "real text that both sides say: UTF-8 files, or *.jsonl as `coppice train` reads")
      ->required()
      ->check(CLI::ExistingFile);
  app->add_option("--lengths", task.lengths, "tokens of a talk without its question, at most")
      ->check(CLI::Range(64, 1 << 30))
      ->capture_default_str();
  app->add_option("--trials", task.trials, "questions asked at each length")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--questions", task.questions, "facts told in one talk, each asked for")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--question", flags->asking,
                  "unseen when the talk is evicted and each asked apart, seen, both (two columns), "
                  "or in-turn: one after the other in the same cache")
      ->capture_default_str();
  app->add_option("--answer-tokens", task.answer_tokens, "tokens of an answer, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_grid_options(*app, flags->grid);
  app->callback(
      [flags] { eval_on_texts<TalkTask>(flags->grid, flags->texts, flags->asking, flags->task); });
}

}  // namespace coppice
