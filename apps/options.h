// The flags that commands share: one flag means one thing everywhere.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "coppice/engine/kv_budget.h"
#include "coppice/engine/sampling_params.h"
#include "coppice/eviction/policy.h"

namespace coppice {

// Where a model runs and how its cache is kept.
struct ModelOptions {
  std::string model = "smollm2";
  std::string gate;    // empty: the one shipped for the model, if any; "none": no gate
  std::string policy;  // empty: dbtrimkv with a gate, else streaming
  KvBudget budget;
  std::optional<int64_t> sinks;
  std::optional<int64_t> recent;
  std::optional<int64_t> floor;
  int64_t lookahead = 2;
  OptionMap policy_options;  // the policy's own settings by name
  std::shared_ptr<const PolicyInfo>
      custom_policy;              // in place of `policy`, by programs that bring one
  bool parity_reference = false;  // gated policies as the published code runs them
  int64_t buffer = 0;             // entries per head above the budget, with parity_reference
  int64_t chunk = 128;
  std::string positions = "original";  // or "compact"
  std::string weights = "packed";      // or "float32"
  std::string kv_dtype = "float16";    // or "bfloat16", "float32"
  std::string device = "cpu";
  int64_t threads = 0;  // 0: every processor this process may use
  bool json = false;
};

// `default_budget` is what --kv-budget is when it is not given.
void add_model_options(CLI::App& app, ModelOptions& options, const std::string& default_budget);

// A flag's size in bytes, such as 64MiB. Throws UsageError that names the flag.
int64_t read_bytes(const char* flag, const std::string& text);

// What a generation needs besides.
struct GenerationOptions {
  SamplingParams sampling;
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;
  bool think = true;  // the template's enable_thinking
  bool think_given = false;
  std::string system;
  bool keep_system = false;  // pins the system message
};

void add_generation_options(CLI::App& app, GenerationOptions& options);

}  // namespace coppice
