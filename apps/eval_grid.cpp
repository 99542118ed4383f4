#include "apps/eval_grid.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

#include "apps/hash_cache.h"
#include "apps/report.h"
#include "apps/usage.h"
#include "coppice/core/error.h"
#include "coppice/core/sha256.h"
#include "coppice/eval/evaluator.h"
#include "coppice/loader/safetensors_file.h"

namespace coppice {
namespace {

constexpr int kFormat = 2;  // of rows; a change in what they mean is a new number

// A line that is rewritten on a terminal, and a line every tenth of the way elsewhere.
std::function<void(const EvalProgress&)> progress_printer() {
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  auto tenth = std::make_shared<int64_t>(0);
  return [terminal, tenth](const EvalProgress& at) {
    const double left = at.seconds * static_cast<double>(at.tokens_in_all - at.tokens) /
                        static_cast<double>(at.tokens);
    const std::string line =
        fmt::format("{} of {} rows, {} of {} tokens, about {:.0f} s left", at.rows, at.rows_in_all,
                    human_count(at.tokens), human_count(at.tokens_in_all), left);
    if (terminal) {
      std::fprintf(stderr, "\r%s\x1b[K%s", line.c_str(), at.tokens == at.tokens_in_all ? "\n" : "");
    } else if (at.tokens * 10 / at.tokens_in_all > *tenth) {
      *tenth = at.tokens * 10 / at.tokens_in_all;
      std::fprintf(stderr, "%s\n", line.c_str());
    }
  };
}

// Of what the template makes of a small chat; null where there is none.
Json template_sha256(const ChatTemplate* chat) {
  if (chat == nullptr) return Json();
  ChatRequest request;
  request.messages = OrderedJson::array();
  for (const char* role : {"user", "assistant", "user"})
    request.messages.push_back({{"role", role}, {"content", "text"}});
  const std::string text = chat->render(request).text;
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.finish();
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

void add_grid_options(CLI::App& app, GridOptions& options) {
  add_model_options(app, options.model, "full");
  // What --policies and --budgets say instead, and what no evaluation of rivals may mix in.
  for (const char* name :
       {"--kv-buffer", "--parity", "--policy", "--policy-option", "--kv-budget", "--positions"})
    app.remove_option(app.get_option(name));
  app.add_option("--policies", options.policies,
                 "eviction policies, with settings of their own as in dbtrimkv:recent=32; the full "
                 "cache is always run [streaming knorm random, and with a gate trimkv if it is "
                 "local, else dbtrimkv]");
  app.add_option("--budgets", options.budgets, "mean entries per KV head")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--out", options.out,
                 "results, a JSON object a line; a file of the same configuration is continued")
      ->required();
  app.add_option("--summary", options.summary,
                 "also write what --json prints into this file, without touching stdout");
  app.add_flag("--restart", options.restart, "begin --out anew and lose the results it holds");
  app.add_option("--seed", options.seed, "of policy random, of trials and of intervals")
      ->capture_default_str();
}

EvalGrid::EvalGrid(const GridOptions& options) : options_(options), runtime_(options.model) {
  Checkpoint checkpoint = Checkpoint::open(model_path(options.model.model));
  model_sha256_ = find_sha256(checkpoint);
  if (const std::string gate = gate_path(options.model, checkpoint); !gate.empty()) {
    gate_sha256_ = sha256_of_gate(gate);
    gate_variant_ = read_gate_spec(gate).variant;
  }
}

EvalModel EvalGrid::model() const {
  return {.model = runtime_.model(),
          .kv_dtype = kv_dtype(options_.model),
          .chunk_tokens = options_.model.chunk};
}

std::vector<std::string> EvalGrid::policies() const {
  if (!options_.policies.empty()) return options_.policies;
  std::vector<std::string> names = {"streaming", "knorm", "random"};
  const std::string& kind = runtime_.gate_kind();
  if (!kind.empty())
    names.insert(names.begin(),
                 kind == "retention" && gate_variant_ == "local" ? "trimkv" : default_policy(kind));
  return names;
}

Json EvalGrid::config(const EvalTask& task, const std::string& data_sha256) const {
  const ModelOptions& model = options_.model;
  Json config = {{"format", kFormat},
                 {"task", task.name()},
                 {"model_sha256", model_sha256_},
                 {"gate_sha256", gate_sha256_.empty() ? Json() : Json(gate_sha256_)},
                 {"gate_variant", gate_variant_.empty() ? Json() : Json(gate_variant_)},
                 {"data_sha256", data_sha256},
                 {"template_sha256", template_sha256(runtime_.find_chat_template())},
                 {"chunk", model.chunk},
                 {"kv_dtype", model.kv_dtype},
                 {"weights", model.weights},
                 {"kv_sinks", or_null(model.sinks)},
                 {"kv_recent", or_null(model.recent)},
                 {"kv_floor", or_null(model.floor)},
                 {"lookahead", model.lookahead},
                 {"seed", options_.seed}};
  config.update(task.config());
  return config;
}

void EvalGrid::run(EvalTask& task, const std::string& data_sha256) const {
  EvictionConfig base;
  base.sinks = options_.model.sinks;
  base.recent = options_.model.recent;
  base.floor = options_.model.floor;
  base.lookahead = options_.model.lookahead;
  base.seed = options_.seed;
  const CacheConfig cache = runtime_.cache();
  const std::vector<EvictionConfig> settings = from_flags([&] {
    return eval_settings(policies(), options_.budgets, base, cache, runtime_.gate_kind());
  });
  const Json shared = config(task, data_sha256);
  RecordFile file = RecordFile::open(options_.out, shared, options_.restart);
  const auto before = static_cast<int64_t>(file.rows().size());
  if (before > 0)
    std::fprintf(stderr, "%s holds %s rows of this configuration\n", options_.out.c_str(),
                 human_count(before).c_str());
  const RowTable rows = run_evaluation(task, settings, cache, shared, file, progress_printer());
  Json summary = task.summarise(rows, settings);
  for (Json& row : summary) {
    for (const EvictionConfig& eviction : settings) {
      const Json key = setting_key(eviction);
      if (row.at("policy") == key.at("policy") && row.at("budget") == key.at("budget"))
        row.update(setting_details(eviction, cache));
    }
  }
  const Json whole = {{"task", task.name()},
                      {"configuration", shared},
                      {"out", options_.out},
                      {"rows", file.rows().size()},
                      {"summary", summary}};
  if (!options_.summary.empty()) {
    const std::string text = dump_json(whole) + "\n";
    const std::span<const std::byte> parts[] = {std::as_bytes(std::span(text))};
    write_file_atomically(options_.summary, parts);
  }
  if (options_.model.json) {
    std::cout << dump_json(whole) << "\n";
  } else {
    std::cout << task.table(summary);
  }
}

}  // namespace coppice
