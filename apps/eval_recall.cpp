// `coppice eval recall`: facts hidden in real text, asked for at the end.

#include <memory>

#include "apps/eval_grid.h"
#include "apps/usage.h"
#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/core/sha256.h"
#include "coppice/eval/recall.h"
#include "coppice/train/document_file.h"

namespace coppice {
namespace {

struct RecallFlags {
  GridOptions grid;
  std::vector<std::string> texts;
  RecallOptions task;
};

// Plain texts of all files; a *.jsonl file gives its documents that are no conversations.
std::vector<std::string> read_passages(const std::vector<std::string>& paths) {
  std::vector<std::string> passages;
  for (const std::string& path : paths) {
    if (!path.ends_with(".jsonl")) {
      passages.push_back(read_text_file(path));
      continue;
    }
    const DocumentFile file = DocumentFile::open(path);
    const std::size_t before = passages.size();
    for (int64_t i = 0; i < file.size(); ++i) {
      Document document = file.read(i);
      if (!document.is_conversation()) passages.push_back(std::move(document.text));
    }
    if (passages.size() == before)
      fail_argument("{}: holds conversations alone, expected texts", path);
  }
  return passages;
}

std::string sha256_of(const std::vector<std::string>& passages) {
  Sha256 hash;
  for (const std::string& passage : passages)
    hash.update(std::as_bytes(std::span(passage.c_str(), passage.size() + 1)));  // with its 0
  return hash.finish();
}

void eval_recall(const RecallFlags& flags) {
  const std::vector<std::string> passages = read_passages(flags.texts);
  const EvalGrid grid(flags.grid);
  RecallOptions options = flags.task;
  options.seed = flags.grid.seed;
  const Runtime& runtime = grid.runtime();
  const RecallModel model{.base = grid.model(),
                          .tokenizer = &runtime.tokenizer(),
                          .chat = &runtime.chat_template(),
                          .end_token_ids = runtime.end_token_ids()};
  const std::unique_ptr<RecallTask> task =
      from_flags([&] { return std::make_unique<RecallTask>(model, passages, options); });
  grid.run(*task, sha256_of(passages));
}

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
                  "facts hidden in one text; each is asked for apart, of the same cache")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--answer-tokens", task.answer_tokens, "tokens of an answer, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->callback([flags] { eval_recall(*flags); });
}

}  // namespace coppice
