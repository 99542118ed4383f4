// `coppice eval held-out`: held-out documents under every policy and budget.

#include <algorithm>
#include <memory>

#include "apps/eval_documents.h"
#include "apps/eval_grid.h"
#include "apps/usage.h"
#include "coppice/eval/held_out.h"
#include "coppice/train/document_file.h"
#include "coppice/train/encode_document.h"

namespace coppice {
namespace {

struct HeldOutFlags {
  GridOptions grid;
  std::string data;
  HeldOutOptions task = {.contexts = {2048}, .documents = 16};
};

void eval_held_out(const HeldOutFlags& flags) {
  const DocumentFile file = DocumentFile::open(flags.data);
  const EvalGrid grid(flags.grid);
  const DocumentEncoder encoder(grid.runtime().tokenizer(), grid.runtime().find_chat_template());
  HeldOutOptions options = flags.task;
  options.seed = flags.grid.seed;
  const auto [shortest, longest] = std::ranges::minmax(options.contexts);
  std::vector<EvalDocument> documents = read_documents(file, encoder, shortest, longest);
  HeldOutTask task =
      from_flags([&] { return HeldOutTask(grid.model(), std::move(documents), options); });
  grid.run(task, file.sha256());
}

}  // namespace

void add_eval_held_out(CLI::App& eval) {
  auto flags = std::make_shared<HeldOutFlags>();
  CLI::App* app = eval.add_subcommand(
      "held-out", "perplexity of documents over the full cache's, for policies and budgets");
  add_grid_options(*app, flags->grid);
  app->add_option("--data", flags->data, "documents, a JSON object a line, as for `coppice train`")
      ->required()
      ->check(CLI::ExistingFile);
  app->add_option("--contexts", flags->task.contexts,
                  "tokens of a document that are read; the second half is scored")
      ->check(CLI::Range(4, 1 << 30))
      ->capture_default_str();
  app->add_option("--documents", flags->task.documents,
                  "documents of each context, spread evenly over those long enough; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->callback([flags] { eval_held_out(*flags); });
}

}  // namespace coppice
