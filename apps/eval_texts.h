// What evaluations read besides a model: texts, and the text side of the model.
#pragma once

#include <string>
#include <vector>

#include "apps/eval_grid.h"
#include "apps/usage.h"
#include "coppice/eval/asking.h"

namespace coppice {

// The texts of all files, in their order; a *.jsonl file gives its documents that are no
// conversations, of one source where `source` is not empty. Throws kInvalidArgument for a *.jsonl
// file that has none.
std::vector<std::string> read_passages(const std::vector<std::string>& paths,
                                       const std::string& source = {});
std::string sha256_of(const std::vector<std::string>& passages);

// Throws kNotFound when the model brings no chat template that can be used. `grid` must outlive it.
TextModel text_model(const EvalGrid& grid);

// Runs a task that hides things in texts and asks for them; `asking` names the ways to ask.
template <typename Task, typename Options>
void eval_on_texts(const GridOptions& grid_options, const std::vector<std::string>& texts,
                   const std::vector<std::string>& asking, Options options) {
  const std::vector<std::string> passages = read_passages(texts);
  const EvalGrid grid(grid_options);
  options.seed = grid_options.seed;
  options.asking = from_flags([&] { return parse_asking(asking); });
  const TextModel model = text_model(grid);
  Task task = from_flags([&] { return Task(model, passages, options); });
  grid.run(task, sha256_of(passages));
}

}  // namespace coppice
