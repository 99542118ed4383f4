#include "apps/options.h"

#include <string>
#include <utility>

#include "coppice/core/error.h"

namespace coppice {
namespace {

// A CLI11 callback that turns our refusal into CLI11's, so that it exits with 2 and names the flag.
template <typename Read>
auto checked(const char* flag, Read read) {
  return [flag, read](const std::string& text) {
    try {
      read(text);
    } catch (const Error& error) {
      throw CLI::ValidationError(flag, error.what());
    }
  };
}

}  // namespace

void add_model_options(CLI::App& app, ModelOptions& options, const std::string& default_budget) {
  options.budget = KvBudget::parse(default_budget);
  app.add_option("--model", options.model,
                 "GGUF file, Hugging Face folder, or smollm2 (the default model)")
      ->capture_default_str();
  app.add_option("--gate", options.gate,
                 "gate file; 'none' for no gate [the one shipped for the model]");
  app.add_option("--policy", options.policy,
                 "eviction policy [dbtrimkv when the model has a gate, else streaming]");
  app.add_option_function<std::vector<std::string>>(
      "--policy-option",
      [&options](const std::vector<std::string>& pairs) {
        for (const std::string& pair : pairs)
          checked("--policy-option", [&options](const std::string& text) {
            options.policy_options.insert_or_assign(parse_option(text).first,
                                                    parse_option(text).second);
          })(pair);
      },
      "NAME=VALUE, a setting of the policy such as window=32; may be repeated");
  app.add_option_function<std::string>(
         "--kv-budget",
         checked("--kv-budget",
                 [&options](const std::string& text) { options.budget = KvBudget::parse(text); }),
         "KV budget: 512 (mean entries per KV head), 64MiB (bytes), 12.5% (of prompt and new "
         "tokens) "
         "or full")
      ->default_str(default_budget);
  app.add_option("--kv-sinks", options.sinks, "first tokens never evicted [the policy's own]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--kv-recent", options.recent, "newest tokens never evicted [the policy's own]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--kv-floor", options.floor, "entries every head keeps [the policy's own]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--lookahead", options.lookahead, "steps ahead that a gated score looks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--parity", [&options](const std::string&) { options.parity_reference = true; },
         "reference: gated policies with the published code's ages and trigger, for comparison")
      ->check(CLI::IsMember({"reference"}));
  app.add_option("--kv-buffer", options.buffer,
                 "entries per head above the budget before eviction, with --parity reference")
      ->check(CLI::NonNegativeNumber)
      ->needs("--parity");
  app.add_option("--chunk", options.chunk, "tokens read per pass, with eviction after each")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option(
         "--positions", options.positions,
         "original, or compact: renumbered when the trained range ends, for endless streams")
      ->check(CLI::IsMember({"original", "compact"}))
      ->capture_default_str();
  app.add_option("--weights", options.weights,
                 "packed (4 and 8 bit, as stored), or float32 (dequantised: slow, exact)")
      ->check(CLI::IsMember({"packed", "float32"}))
      ->capture_default_str();
  app.add_option("--kv-dtype", options.kv_dtype, "type of cached keys and values")
      ->check(CLI::IsMember({"float16", "bfloat16", "float32"}))
      ->capture_default_str();
  app.add_option("--device", options.device, "where to run")
      ->check(CLI::IsMember({"cpu"}))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "threads [every processor available]")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--json", options.json, "print one JSON object on stdout");
}

void add_generation_options(CLI::App& app, GenerationOptions& options) {
  SamplingParams& sampling = options.sampling;
  sampling.temperature = 0.0;
  app.add_option("--max-tokens", options.max_tokens, "new tokens at most [as many as fit]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--temperature", sampling.temperature, "0 is greedy")->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "0 is off")->capture_default_str();
  app.add_option("--top-p", sampling.top_p)->capture_default_str();
  app.add_option("--min-p", sampling.min_p)->capture_default_str();
  app.add_option("--repetition-penalty", sampling.repetition_penalty)->capture_default_str();
  app.add_option("--presence-penalty", sampling.presence_penalty)->capture_default_str();
  app.add_option("--frequency-penalty", sampling.frequency_penalty)->capture_default_str();
  app.add_option_function<std::vector<std::string>>(
      "--logit-bias",
      [&sampling](const std::vector<std::string>& pairs) {
        for (const std::string& pair : pairs) {
          int64_t id = 0;
          double bias = 0;
          int used = 0;
          if (std::sscanf(pair.c_str(), "%ld=%lf%n", &id, &bias, &used) != 2 ||
              used != static_cast<int>(pair.size())) {
            throw CLI::ValidationError("--logit-bias",
                                       "expected TOKEN_ID=BIAS, got \"" + pair + "\"");
          }
          sampling.logit_bias[id] = bias;
        }
      },
      "TOKEN_ID=BIAS, may be repeated");
  app.add_option("--stop", sampling.stop, "text that ends the answer, may be repeated");
  app.add_flag("--ignore-eos", sampling.ignore_eos, "do not stop at the model's end tokens");
  app.add_option("--seed", options.seed, "makes sampling reproducible");
  app.add_option("--system", options.system, "system message");
  app.add_flag_callback(
      "--no-think", [&options] { options.think = false, options.think_given = true; },
      "tell the template that the model shall not think first");
}

}  // namespace coppice
