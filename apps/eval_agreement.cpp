// `coppice eval agreement`: KL to the full cache and agreement with its greedy continuations, under
// every policy and budget.

#include <algorithm>
#include <memory>

#include "apps/eval_documents.h"
#include "apps/eval_grid.h"
#include "apps/usage.h"
#include "coppice/eval/agreement.h"

namespace coppice {
namespace {

struct AgreementFlags {
  GridOptions grid;
  std::string data;
  AgreementOptions task = {.contexts = {2048}, .documents = 8};
};

void eval_agreement(const AgreementFlags& flags) {
  const DocumentFile file = DocumentFile::open(flags.data);
  const EvalGrid grid(flags.grid);
  const DocumentEncoder encoder(grid.runtime().tokenizer(), grid.runtime().find_chat_template());
  AgreementOptions options = flags.task;
  options.seed = flags.grid.seed;
  const auto [shortest, longest] = std::ranges::minmax(options.contexts);
  std::vector<EvalDocument> documents = read_documents(file, encoder, shortest, longest);
  AgreementTask task =
      from_flags([&] { return AgreementTask(grid.model(), std::move(documents), options); });
  grid.run(task, file.sha256());
}

}  // namespace

void add_eval_agreement(CLI::App& eval) {
  auto flags = std::make_shared<AgreementFlags>();
  CLI::App* app = eval.add_subcommand(
      "agreement", "KL to the full cache, and agreement with what it writes greedily");
  add_grid_options(*app, flags->grid);
  app->add_option("--data", flags->data, "documents, a JSON object a line, as for `coppice train`")
      ->required()
      ->check(CLI::ExistingFile);
  app->add_option("--contexts", flags->task.contexts,
                  "tokens of a document that are read; the second half is compared")
      ->check(CLI::Range(4, 1 << 30))
      ->capture_default_str();
  app->add_option("--new-tokens", flags->task.new_tokens,
                  "of the full cache's continuation, which every setting reads")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app->add_option("--documents", flags->task.documents,
                  "documents of each context, spread evenly over those long enough; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->callback([flags] { eval_agreement(*flags); });
}

}  // namespace coppice
