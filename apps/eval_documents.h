// Documents of a data file as evaluations read them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "apps/eval_grid.h"
#include "apps/usage.h"
#include "coppice/eval/eval_documents.h"
#include "coppice/train/document_file.h"

namespace coppice {

// Documents of at least `shortest` tokens, cut to `longest`.
std::vector<EvalDocument> read_documents(const DocumentFile& file, const EvalGrid& grid,
                                         int64_t shortest, int64_t longest);

void add_data_option(CLI::App& app, std::string& path);
void add_documents_option(CLI::App& app, int64_t& documents);  // of each context

// Runs a task over documents of `options.contexts` tokens.
template <typename Task, typename Options>
void eval_on_documents(const GridOptions& grid_options, const std::string& data, Options options) {
  const DocumentFile file = DocumentFile::open(data);
  const EvalGrid grid(grid_options);
  options.seed = grid_options.seed;
  const auto [shortest, longest] = std::ranges::minmax(options.contexts);
  std::vector<EvalDocument> documents = read_documents(file, grid, shortest, longest);
  Task task = from_flags([&] { return Task(grid.model(), std::move(documents), options); });
  grid.run(task, file.sha256());
}

}  // namespace coppice
