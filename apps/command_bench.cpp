// `coppice bench`: how fast this machine runs a model, and how near that is to the memory's limit.
//
// The limit: a decode step reads every packed weight once (of the embedding table one row per
// sequence, unless the table is the head too) and the keys and values of every kept entry; it
// cannot be faster than a plain reading of as many bytes by as many threads, which is timed around
// every measurement.

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "apps/commands.h"
#include "apps/report.h"
#include "apps/runtime.h"
#include "apps/stream_bandwidth.h"
#include "apps/usage.h"
#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/core/rng.h"
#include "coppice/ops/packed_matrix.h"
#include "coppice/ops/parallel.h"

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  ModelOptions model;
  std::vector<int64_t> prompt_tokens = {512};
  int64_t new_tokens = 64;
  int64_t sequences = 1;
  int repeats = 5;
  std::string text;
};

// One run of one prompt length; counts are of all sequences together.
struct Measurement {
  Usage usage;  // its timing of the whole run, not of decoding alone
  double prefill_tokens_per_s = 0;
  double decode_tokens_per_s = 0;
  double evict_share = 0;  // of the decode steps
  double kv_bytes = 0;     // keys and values that one decode step reads, in the mean
  double stream_bytes_per_s = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The median over runs of one of their numbers.
double median_of(const std::vector<Measurement>& runs, double Measurement::*field) {
  std::vector<double> values;
  for (const Measurement& run : runs) values.push_back(run.*field);
  return median(std::move(values));
}

// Tokens to read, one after another and from the start again when they are used up: of --text, or
// drawn from the vocabulary.
class Tokens final {
 public:
  Tokens(const Tokenizer& tokenizer, const std::string& path) {
    if (!path.empty()) {
      ids_ = tokenizer.encode(read_text_file(path), {.parse_special = false});
      if (ids_.empty()) fail_argument("--text {} holds no token", path);
      return;
    }
    Rng rng(1);
    const auto vocabulary = static_cast<uint64_t>(tokenizer.vocab_size());
    while (ids_.size() < 8192) {
      const auto id = static_cast<int32_t>(rng.below(vocabulary));
      if (!tokenizer.is_special(id)) ids_.push_back(id);
    }
  }

  std::vector<int32_t> next(int64_t count) {
    std::vector<int32_t> taken;
    for (int64_t i = 0; i < count; ++i) taken.push_back(ids_[next_++ % ids_.size()]);
    return taken;
  }

 private:
  std::vector<int32_t> ids_;
  std::size_t next_ = 0;
};

// Bytes of weights that a step reads whatever its tokens, and those it reads per token.
struct WeightBytes {
  int64_t step = 0;
  int64_t token = 0;
};

WeightBytes weights_read(const ModelOptions& options) {
  Checkpoint checkpoint = Checkpoint::open(model_path(options.model));
  const ModelArgs args = ModelArgs::from_config(checkpoint.config());
  const std::optional<GateWeights> gate = find_gate(options, checkpoint);
  WeightBytes bytes;
  bytes.step = weight_bytes(checkpoint, weight_mode(options), gate ? &*gate : nullptr);
  if (args.tie_word_embeddings) return bytes;
  const StoredTensor* table = checkpoint.find("model.embed_tokens.weight");
  if (table == nullptr) return bytes;
  const int64_t held = weight_mode(options) == WeightMode::kPacked
                           ? ops::packed_bytes(table->type, table->rows(), table->cols())
                           : table->rows() * table->cols() * static_cast<int64_t>(sizeof(float));
  bytes.step -= held;
  bytes.token = held / table->rows();
  return bytes;
}

// Seconds of all steps of a request so far, and of its eviction.
struct Spent {
  double steps = 0;
  double eviction = 0;
};

Spent spent(const Usage& usage) {
  const auto seconds = [](int64_t tokens, double rate) {
    return rate > 0 ? static_cast<double>(tokens) / rate : 0.0;
  };
  Spent spent;
  spent.steps =
      seconds(usage.tokens.prompt - usage.tokens.reused, usage.timing.prefill_tokens_per_s) +
      seconds(usage.tokens.generated - 1, usage.timing.decode_tokens_per_s);
  spent.eviction = usage.timing.evict_share * spent.steps;
  return spent;
}

// The last usage of every request.
using Usages = std::map<RequestId, Usage>;

void step(Engine& engine, Usages& usages) {
  for (const RequestOutput& output : engine.step()) {
    if (output.error) throw Error(output.error->code, output.error->message);
    usages[output.id] = output.usage;
  }
}

double eviction_seconds(const Usages& usages) {
  double total = 0;
  for (const auto& [id, usage] : usages) total += spent(usage).eviction;
  return total;
}

int64_t kept_entries(const Usages& usages) {
  int64_t total = 0;
  for (const auto& [id, usage] : usages) total += usage.kv.kept_entries;
  return total;
}

// Requests of `prompt` tokens each, read together. Timed are the steps from the one that reads the
// last prompt's end to the last new token; whoever was read earlier generates meanwhile.
Measurement measure(const Runtime& runtime, const BenchOptions& options, int64_t prompt,
                    Tokens& tokens) {
  const int64_t chunks = (prompt + options.model.chunk - 1) / options.model.chunk;
  const int64_t head_start = options.sequences == 1 ? 0 : options.sequences * chunks;
  Request request;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = 1 + options.new_tokens + head_start;
  const int64_t longest = prompt + *request.sampling.max_tokens;
  const auto engine = runtime.make_engine(prompt + options.new_tokens, longest, options.sequences);
  Usages usages;
  from_flags([&] {
    for (int64_t i = 0; i < options.sequences; ++i) {
      request.prompt = tokens.next(prompt);
      usages[engine->submit(request)] = {};
    }
  });

  Measurement result;
  const auto reads = [](const auto& item) { return item.second.tokens.generated == 0; };
  const Clock::time_point start = Clock::now();
  while (std::any_of(usages.begin(), usages.end(), reads)) step(*engine, usages);
  const Clock::time_point read = Clock::now();
  const double evicted_before = eviction_seconds(usages);
  double entries = 0;
  for (int64_t i = 0; i < options.new_tokens; ++i) {
    step(*engine, usages);
    entries += static_cast<double>(kept_entries(usages));
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - read).count();

  const auto number = [](int64_t count) { return static_cast<double>(count); };
  result.prefill_tokens_per_s =
      number(prompt * options.sequences) / std::chrono::duration<double>(read - start).count();
  result.decode_tokens_per_s = number(options.new_tokens * options.sequences) / seconds;
  result.evict_share = (eviction_seconds(usages) - evicted_before) / seconds;
  const CacheConfig cache = runtime.cache();
  result.kv_bytes = entries / number(options.new_tokens) * number(2 * cache.head_dim) *
                    static_cast<double>(c10::elementSize(cache.dtype));
  result.usage = usages.begin()->second;
  for (auto it = std::next(usages.begin()); it != usages.end(); ++it) {
    Usage& sum = result.usage;
    const Usage& one = it->second;
    sum.tokens.prompt += one.tokens.prompt;
    sum.tokens.generated += one.tokens.generated;
    if (sum.kv.budget_entries) *sum.kv.budget_entries += *one.kv.budget_entries;
    sum.kv.kept_entries += one.kv.kept_entries;
    sum.kv.evicted_entries += one.kv.evicted_entries;
    sum.kv.peak_entries += one.kv.peak_entries;
    sum.kv.bytes_peak += one.kv.bytes_peak;
  }
  return result;
}

// The runs of one prompt length.
struct Case {
  int64_t prompt = 0;
  std::vector<Measurement> runs = {};
};

// What the medians of a case come to.
struct Result {
  double prefill = 0;  // tokens/s, of all sequences together
  double decode = 0;
  double evict_share = 0;
  double stream = 0;      // bytes/s
  double step_bytes = 0;  // that one decode step reads
  double limit = 0;       // tokens/s, were a step as fast as reading its bytes
};

Result summary(const std::vector<Measurement>& runs, const WeightBytes& weights,
               int64_t sequences) {
  Result result;
  result.prefill = median_of(runs, &Measurement::prefill_tokens_per_s);
  result.decode = median_of(runs, &Measurement::decode_tokens_per_s);
  result.evict_share = median_of(runs, &Measurement::evict_share);
  result.stream = median_of(runs, &Measurement::stream_bytes_per_s);
  result.step_bytes = static_cast<double>(weights.step + weights.token * sequences) +
                      median_of(runs, &Measurement::kv_bytes);
  result.limit = static_cast<double>(sequences) * result.stream / result.step_bytes;
  return result;
}

Json case_json(const Case& measured, const Result& result, double load_seconds) {
  const auto all = [&measured](double Measurement::*field) {
    Json values = Json::array();
    for (const Measurement& run : measured.runs) values.push_back(run.*field);
    return values;
  };
  Usage usage = measured.runs.back().usage;
  usage.timing = {.load_s = load_seconds,
                  .prefill_tokens_per_s = result.prefill,
                  .decode_tokens_per_s = result.decode,
                  .evict_share = result.evict_share};
  Json json = to_json(usage);
  json["memory"] = {{"step_bytes", result.step_bytes},
                    {"kv_bytes", median_of(measured.runs, &Measurement::kv_bytes)},
                    {"stream_bytes_per_s", result.stream},
                    {"limit_tokens_per_s", result.limit},
                    {"limit_share", result.decode / result.limit}};
  json["repeats"] = {{"prefill_tokens_per_s", all(&Measurement::prefill_tokens_per_s)},
                     {"decode_tokens_per_s", all(&Measurement::decode_tokens_per_s)},
                     {"stream_bytes_per_s", all(&Measurement::stream_bytes_per_s)}};
  return json;
}

void print_table(const std::vector<Case>& cases, const std::vector<Result>& results,
                 const BenchOptions& options) {
  std::cout << fmt::format("{:>7} {:>9} {:>11} {:>11} {:>9} {:>12} {:>11} {:>11} {:>8}\n", "prompt",
                           "sequences", "prefill t/s", "decode t/s", "eviction", "bytes a step",
                           "memory GB/s", "limit t/s", "reached");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Result& result = results[i];
    std::cout << fmt::format(
        "{:>7} {:>9} {:>11.1f} {:>11.1f} {:>7.1f} % {:>12} {:>11.1f} {:>11.1f} {:>6.0f} %\n",
        cases[i].prompt, options.sequences, result.prefill, result.decode, 100 * result.evict_share,
        human_bytes(result.step_bytes), result.stream / 1e9, result.limit,
        100 * result.decode / result.limit);
  }
}

void bench(const BenchOptions& options) {
  const Runtime runtime(options.model);
  const WeightBytes weights = weights_read(options.model);
  StreamBandwidth stream(weights.step);
  Tokens tokens(runtime.tokenizer(), options.text);
  std::vector<Case> cases;
  for (const int64_t prompt : options.prompt_tokens) cases.push_back({.prompt = prompt});

  BenchOptions first = options;  // what is allocated and mapped on first use
  first.new_tokens = 2;
  measure(runtime, first, std::min<int64_t>(cases.front().prompt, options.model.chunk), tokens);
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (Case& one : cases) {
      const double before = stream.measure();
      one.runs.push_back(measure(runtime, options, one.prompt, tokens));
      one.runs.back().stream_bytes_per_s = (before + stream.measure()) / 2;
    }
  }

  std::vector<Result> results;
  for (const Case& one : cases) results.push_back(summary(one.runs, weights, options.sequences));
  if (!options.model.json) {
    std::cout << fmt::format("{}: {} threads, {} weights, policy {}, --kv-budget {}\n",
                             runtime.path(), ops::num_threads(), options.model.weights,
                             cases.front().runs.front().usage.kv.policy,
                             options.model.budget.to_string());
    print_table(cases, results, options);
    return;
  }
  Json json = {{"model", runtime.path()},
               {"threads", ops::num_threads()},
               {"weights", options.model.weights},
               {"sequences", options.sequences},
               {"weight_bytes_per_step", weights.step + weights.token * options.sequences},
               {"results", Json::array()}};
  for (std::size_t i = 0; i < cases.size(); ++i)
    json["results"].push_back(case_json(cases[i], results[i], runtime.load_seconds()));
  std::cout << dump_json(json) << "\n";
}

}  // namespace

void add_bench_command(CLI::App& program) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = program.add_subcommand(
      "bench", "how fast a model runs here, and how near that is to the memory's limit");
  add_model_options(*command, options->model, "1024");
  command->add_option("--prompt-tokens", options->prompt_tokens, "prompt lengths: 512,6000")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--new-tokens", options->new_tokens, "decode steps that are timed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--sequences", options->sequences,
                   "sequences at once, each with a prompt and, of a budget in bytes, a part of its "
                   "own; rates are of all together")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "runs of which medians are shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      ->add_option("--text", options->text,
                   "UTF-8 text that is read, again from its start where it ends [random tokens]")
      ->check(CLI::ExistingFile);
  command->callback([options] { bench(*options); });
}

}  // namespace coppice
