// `coppice eval`: what a policy costs at a budget. Here `eval ppl`, the perplexity of a text with
// the cache that serving would have; the grids of eval_grid.h have files of their own.

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "apps/eval_grid.h"
#include "apps/report.h"
#include "apps/runtime.h"
#include "apps/usage.h"
#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/eval/perplexity.h"

namespace coppice {
namespace {

struct PplOptions {
  ModelOptions model;
  std::string text;
  int64_t context = 1024;
  int64_t chunks = 1;
};

// A line that is rewritten on a terminal, and a line every tenth of the way elsewhere.
PerplexityProgress progress_printer() {
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  auto tenth = std::make_shared<int64_t>(0);
  return [terminal, tenth](int64_t read, int64_t total) {
    if (terminal) {
      std::fprintf(stderr, "\r%ld of %ld tokens%s", read, total, read == total ? "\n" : "");
    } else if (read * 10 / total > *tenth) {
      *tenth = read * 10 / total;
      std::fprintf(stderr, "%ld of %ld tokens\n", read, total);
    }
    return true;
  };
}

Json ppl_json(const PplOptions& options, const PerplexityResult& result, double load_seconds) {
  const EvictionConfig& eviction = result.eviction;
  const bool bounded = eviction.budget_entries != EvictionConfig::kUnbounded;
  return {{"perplexity", result.perplexity},
          {"mean_nll", result.mean_nll},
          {"scored_tokens", result.scored_tokens},
          {"context", options.context},
          {"chunks", options.chunks},
          {"running_perplexity", result.running_perplexity},
          {"tokens", {{"prompt", result.tokens_read}, {"generated", 0}, {"reused", 0}}},
          {"kv",
           {{"policy", eviction.policy},
            {"policy_options", eviction.options},
            {"sinks", *eviction.sinks},
            {"recent", *eviction.recent},
            {"budget_entries", bounded ? Json(result.kept_entries) : Json()},
            {"kept_entries", result.kept_entries},
            {"evicted_entries", result.evicted_entries},
            {"peak_entries", result.peak_entries},
            {"bytes_bound", result.bytes_bound},
            {"bytes_peak", result.bytes_peak},
            {"kept_per_layer", result.kept_per_layer},
            {"shortest_row", result.shortest_row},
            {"longest_row", result.longest_row}}},
          {"timing",
           {{"load_s", load_seconds},
            {"prefill_tokens_per_s", static_cast<double>(result.tokens_read) / result.seconds},
            {"decode_tokens_per_s", 0.0},
            {"evict_share", result.evict_seconds / result.seconds}}}};
}

void eval_ppl(const PplOptions& options) {
  const Runtime runtime(options.model);
  const std::string text = read_text_file(options.text);
  const std::vector<int32_t> ids = runtime.tokenizer().encode(text, {.parse_special = false});

  PerplexityOptions eval;
  eval.context_tokens = options.context;
  eval.contexts = options.chunks;
  eval.chunk_tokens = options.model.chunk;
  eval.kv_dtype = kv_dtype(options.model);
  eval.eviction = eviction_config(options.model, runtime.gate_kind(),
                                  budget_entries(options.model, runtime.cache(), options.context));
  const PerplexityResult result = from_flags([&] {
    return evaluate_perplexity(*runtime.model(), ids, eval,
                               options.model.json ? nullptr : progress_printer());
  });

  if (options.model.json) {
    std::cout << dump_json(ppl_json(options, result, runtime.load_seconds())) << "\n";
    return;
  }
  std::cout << fmt::format(
      "perplexity {:.4f}  (mean NLL {:.6f} over {} tokens: positions {}..{} of {} x {})\n",
      result.perplexity, result.mean_nll, human_count(result.scored_tokens), options.context / 2,
      options.context - 2, options.chunks, options.context);
  std::cout << fmt::format(
      "{}: {} entries kept, {} evicted, rows {} to {} long; KV at most {} of {} bound; {:.0f} "
      "tokens/s\n",
      eval.eviction.policy, human_count(result.kept_entries), human_count(result.evicted_entries),
      result.shortest_row, result.longest_row, human_bytes(static_cast<double>(result.bytes_peak)),
      human_bytes(static_cast<double>(result.bytes_bound)),
      static_cast<double>(result.tokens_read) / result.seconds);
}

}  // namespace

void add_eval_command(CLI::App& program) {
  CLI::App* eval = program.add_subcommand("eval", "measure quality under a budget");
  eval->require_subcommand(1);
  auto options = std::make_shared<PplOptions>();
  CLI::App* ppl = eval->add_subcommand("ppl", "perplexity of a text");
  add_model_options(*ppl, options->model, "full");
  ppl->add_option("--text", options->text, "UTF-8 text file")->required()->check(CLI::ExistingFile);
  ppl->add_option("--context", options->context,
                  "tokens of one chunk of text; its second half is scored")
      ->check(CLI::Range(4, 1 << 30))
      ->capture_default_str();
  ppl->add_option("--chunks", options->chunks, "how many, from the start of the text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  ppl->callback([options] { eval_ppl(*options); });
  add_eval_held_out(*eval);
  add_eval_agreement(*eval);
  add_eval_recall(*eval);
  add_eval_ruler(*eval);
  add_eval_kept(*eval);
  add_eval_cost(*eval);
}

}  // namespace coppice
