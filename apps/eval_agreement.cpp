// `coppice eval agreement`: KL to the full cache and agreement with its greedy continuations, under
// every policy and budget.

#include <memory>

#include "apps/eval_documents.h"
#include "coppice/eval/agreement.h"

namespace coppice {
namespace {

struct AgreementFlags {
  GridOptions grid;
  std::string data;
  AgreementOptions task = {.contexts = {2048}, .documents = 8};
};

}  // namespace

void add_eval_agreement(CLI::App& eval) {
  auto flags = std::make_shared<AgreementFlags>();
  CLI::App* app = eval.add_subcommand(
      "agreement", "KL to the full cache, and agreement with what it writes greedily");
  add_grid_options(*app, flags->grid);
  add_data_option(*app, flags->data);
  app->add_option("--contexts", flags->task.contexts,
                  "tokens of a document that are read; the second half is compared")
      ->check(CLI::Range(4, 1 << 30))
      ->capture_default_str();
  app->add_option("--new-tokens", flags->task.new_tokens,
                  "of the full cache's continuation, which every setting reads")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  add_documents_option(*app, flags->task.documents);
  app->callback(
      [flags] { eval_on_documents<AgreementTask>(flags->grid, flags->data, flags->task); });
}

}  // namespace coppice
