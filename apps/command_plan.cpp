// `coppice plan`: the memory that settings will take, before anything is loaded.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "apps/report.h"
#include "apps/runtime.h"
#include "coppice/cache/memory_plan.h"
#include "coppice/core/error.h"
#include "coppice/engine/load_text.h"
#include "coppice/engine/scheduler.h"
#include "coppice/models/vision_tower.h"

namespace coppice {
namespace {

struct PlanOptions {
  ModelOptions model;
  int64_t tokens = 0;
  std::string kv_pool;  // empty: of one sequence, not of a server
  int64_t max_running = 16;
};

// Pages of the libraries' code that a first pass touches and this process has not: measured.
constexpr int64_t kPassCodeBytes = 12 << 20;
// What a process holds without weights and cache, measured on this one: code, libraries and the
// tokenizer. The pages of the mapped model file are not counted: they go when it has been read.
int64_t program_bytes(const ModelOptions& options) {
  // The checkpoint closes at the end of this line.
  const Tokenizer tokenizer = load_tokenizer(Checkpoint::open(model_path(options.model)));
  std::ifstream status("/proc/self/status");
  int64_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    int64_t part = 0;
    if (std::sscanf(line.c_str(), "VmRSS: %ld kB", &part) == 1) kib = part;
  }
  return kib * 1024 + kPassCodeBytes;
}

// What the allocator holds for each byte of activations that lives at once, attention's scratch and
// rounded activations included: measured at chunks of 16 to 512.
constexpr double kScratchFactor = 2.5;

// What a running request of a server takes beside its cache: its connection's thread, its text and
// its tokens, and what lies between allocations of such different ages. Measured with prompts of up
// to 4,000 tokens, 16 at once.
constexpr int64_t kRequestBytes = 1536 << 10;

// Activations of one pass, all float32: the residual stream and its norm, the projections, the
// feed-forward parts that live at once, and for each sequence a row of logits with its copy for
// sampling. Embeddings that bring features for several layers (DeepStack) live as long as the pass.
int64_t scratch_bytes(const ModelArgs& args, int64_t pass_tokens, int64_t sequences) {
  const int64_t heads = args.num_attention_heads + 2 * args.num_key_value_heads;
  const int64_t attention = 2 * heads * args.head_dim + args.num_attention_heads * args.head_dim;
  const int64_t wide = args.deepstack_layers > 0 ? args.embedding_width() : 0;
  const int64_t values =
      wide + 3 * args.hidden_size + std::max(attention, 3 * args.intermediate_size);
  const auto floats = static_cast<double>(pass_tokens * values + 2 * sequences * args.vocab_size);
  return static_cast<int64_t>(floats * sizeof(float) * kScratchFactor);
}

struct Demand {
  int64_t kv = 0, scratch = 0;
};

Demand demand(const PlanOptions& options, const ModelArgs& args, const CacheConfig& cache,
              const EvictionConfig& eviction, int64_t tokens) {
  const int64_t chunk = options.model.chunk;
  if (options.kv_pool.empty()) {
    const int64_t blocks = worst_case_blocks(cache, eviction, chunk, tokens);
    return {.kv = blocks * cache.block_bytes(),
            .scratch = scratch_bytes(args, std::min(chunk, tokens), 1)};
  }
  const int64_t running = options.max_running;
  const int64_t pass = std::max(SchedulerConfig{}.max_batch_tokens, chunk + running - 1);
  return {.kv = read_bytes("--kv-pool", options.kv_pool),
          .scratch = scratch_bytes(args, pass, running) + running * kRequestBytes};
}

void plan(const PlanOptions& options) {
  const int64_t program = program_bytes(options.model);
  Checkpoint checkpoint = Checkpoint::open(model_path(options.model.model));
  const ModelArgs args = ModelArgs::from_config(checkpoint.config());
  const std::optional<GateWeights> gate = find_gate(options.model, checkpoint);
  const CacheConfig cache = cache_config(args, kv_dtype(options.model), c10::Device(c10::kCPU));
  const int64_t tokens = options.tokens > 0 ? options.tokens : args.max_position_embeddings;
  const EvictionConfig eviction = eviction_config(options.model, gate ? gate->spec.kind : "",
                                                  budget_entries(options.model, cache, tokens));
  const auto [kv, scratch] = demand(options, args, cache, eviction, tokens);

  const int64_t weights =
      weight_bytes(checkpoint, weight_mode(options.model), gate ? &*gate : nullptr);
  const int64_t vision = vision_bytes(checkpoint, weight_mode(options.model));
  const int64_t full = tokens * cache.num_rows() * cache.entry_bytes();
  const bool bounded = eviction.budget_entries != EvictionConfig::kUnbounded;
  const Json result = {
      {"model", checkpoint.path()},
      {"policy", bounded ? eviction.policy : "full"},
      {"tokens", tokens},
      {"budget_entries", bounded ? Json(eviction.budget_entries * cache.num_rows()) : Json()},
      {"bytes",
       {{"weights", weights},
        {"kv", kv},
        {"scratch", scratch},
        {"vision", vision},
        {"program", program},
        {"total", weights + kv + scratch + vision + program}}},
      {"kv_full_bytes", full}};
  if (options.model.json) {
    std::cout << dump_json(result) << "\n";
    return;
  }
  const auto row = [](const char* name, int64_t bytes, const std::string& note) {
    std::cout << fmt::format("{:10}{:>12}  {}\n", name, human_bytes(static_cast<double>(bytes)),
                             note);
  };
  row("weights", weights, options.model.weights + (gate ? ", with gate" : ", no gate"));
  row("KV", kv,
      !options.kv_pool.empty() ? "the pool of a server"
      : bounded
          ? fmt::format(
                "{}, {} entries per head and a chunk of {} tokens; full cache of {} tokens: {}",
                eviction.policy, eviction.budget_entries, options.model.chunk, human_count(tokens),
                human_bytes(static_cast<double>(full)))
          : fmt::format("full cache of {} tokens", human_count(tokens)));
  row("scratch", scratch,
      options.kv_pool.empty()
          ? "activations of one pass"
          : fmt::format("activations of one pass and {} running requests", options.max_running));
  row("vision", vision, vision > 0 ? "vision tower" : "no vision tower");
  row("program", program, "code and libraries");
  row("total", weights + kv + scratch + vision + program, "");
}

}  // namespace

void add_plan_command(CLI::App& program) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      program.add_subcommand("plan", "memory that settings will take, without loading");
  add_model_options(*command, options->model, "1024");
  command
      ->add_option("--tokens", options->tokens,
                   "prompt and new tokens together [the trained range]")
      ->check(CLI::PositiveNumber);
  command->add_option("--kv-pool", options->kv_pool,
                      "of a server with a pool of so many bytes, such as 256MiB [of one sequence]");
  command
      ->add_option("--max-running", options->max_running,
                   "requests of that server that run at once")
      ->needs("--kv-pool")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([options] { plan(*options); });
}

}  // namespace coppice
