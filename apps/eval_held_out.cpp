// `coppice eval held-out`: held-out documents under every policy and budget.

#include <memory>

#include "apps/eval_documents.h"
#include "coppice/eval/held_out.h"

namespace coppice {
namespace {

struct HeldOutFlags {
  GridOptions grid;
  std::string data;
  HeldOutOptions task = {.contexts = {2048}, .documents = 16};
};

}  // namespace

void add_eval_held_out(CLI::App& eval) {
  auto flags = std::make_shared<HeldOutFlags>();
  CLI::App* app = eval.add_subcommand(
      "held-out", "perplexity of documents over the full cache's, for policies and budgets");
  add_grid_options(*app, flags->grid);
  add_data_option(*app, flags->data);
  app->add_option("--contexts", flags->task.contexts,
                  "tokens of a document that are read; the second half is scored")
      ->check(CLI::Range(4, 1 << 30))
      ->capture_default_str();
  add_documents_option(*app, flags->task.documents);
  app->callback([flags] { eval_on_documents<HeldOutTask>(flags->grid, flags->data, flags->task); });
}

}  // namespace coppice
