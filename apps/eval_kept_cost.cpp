// `coppice eval kept` and `coppice eval cost`: what a policy keeps, and what it costs.

#include <algorithm>
#include <memory>

#include "apps/eval_documents.h"
#include "apps/eval_grid.h"
#include "apps/usage.h"
#include "coppice/core/error.h"
#include "coppice/study/cost_task.h"
#include "coppice/study/kept_task.h"
#include "coppice/train/encode_document.h"

namespace coppice {
namespace {

struct KeptFlags {
  GridOptions grid;
  std::string data;
  int64_t documents = 4;
  KeptOptions task;
};

struct CostFlags {
  GridOptions grid;
  std::string data;
  int64_t prompt_tokens = 2048;
  CostOptions task;
};

void eval_kept(const KeptFlags& flags) {
  const DocumentFile file = DocumentFile::open(flags.data);
  const EvalGrid grid(flags.grid);
  const std::vector<EvalDocument> all =
      read_documents(file, grid, flags.task.context, flags.task.context);
  const auto have = static_cast<int64_t>(all.size());
  const int64_t wanted = std::min(flags.documents, have);
  std::vector<EvalDocument> chosen;  // spread evenly over those long enough
  for (const std::size_t place : spread_evenly(have, wanted)) chosen.push_back(all[place]);
  KeptTask task = from_flags([&] {
    return KeptTask(grid.model(), grid.runtime().tokenizer(), std::move(chosen), flags.task);
  });
  grid.run(task, file.sha256());
}

// The first documents, one after the other, up to `tokens`.
std::vector<int32_t> prompt_of(const DocumentFile& file, const EvalGrid& grid, int64_t tokens) {
  std::vector<int32_t> prompt;
  const DocumentEncoder encoder(grid.runtime().tokenizer(), grid.runtime().find_chat_template());
  for (int64_t i = 0; i < file.size() && static_cast<int64_t>(prompt.size()) < tokens; ++i) {
    const std::vector<int32_t> more = encoder.encode(file.read(i), file.where(i)).tokens;
    prompt.insert(prompt.end(), more.begin(), more.end());
  }
  if (static_cast<int64_t>(prompt.size()) < tokens)
    fail_argument("{}: holds {} tokens, a prompt of {} is asked for", file.where(0), prompt.size(),
                  tokens);
  prompt.resize(static_cast<std::size_t>(tokens));
  return prompt;
}

void eval_cost(const CostFlags& flags) {
  const DocumentFile file = DocumentFile::open(flags.data);
  const EvalGrid grid(flags.grid);
  CostTask task = from_flags([&] {
    return CostTask(grid.model(), prompt_of(file, grid, flags.prompt_tokens), flags.task);
  });
  grid.run(task, file.sha256());
}

}  // namespace

void add_eval_kept(CLI::App& eval) {
  auto flags = std::make_shared<KeptFlags>();
  CLI::App* app = eval.add_subcommand(
      "kept", "entries that each layer and head keeps, and of which kinds of token");
  add_grid_options(*app, flags->grid);
  add_data_option(*app, flags->data);
  app->add_option("--context", flags->task.context, "tokens of a document that are read")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app->add_option("--documents", flags->documents, "how many, spread evenly over those long enough")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->callback([flags] { eval_kept(*flags); });
}

void add_eval_cost(CLI::App& eval) {
  auto flags = std::make_shared<CostFlags>();
  CLI::App* app = eval.add_subcommand("cost", "speed and memory, for policies and budgets");
  add_grid_options(*app, flags->grid);
  app->add_option("--data", flags->data, "documents, a JSON object a line: the prompt")
      ->required()
      ->check(CLI::ExistingFile);
  app->add_option("--prompt-tokens", flags->prompt_tokens, "tokens that are read")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app->add_option("--new-tokens", flags->task.new_tokens, "tokens that are written")
      ->check(CLI::Range(2, 1 << 30))
      ->capture_default_str();
  app->add_option("--repeats", flags->task.repeats, "of everything; medians are reported")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->callback([flags] { eval_cost(*flags); });
}

}  // namespace coppice
