// The default model and its first trained gate on a real text, against numbers from an independent
// float32 simulation (tests/golden/gate-trial-oracle.json). Needs the downloaded model and the
// text; skipped without them.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/core/mapped_file.h"
#include "coppice/engine/load_text.h"
#include "coppice/eval/perplexity.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/loader/gate_checkpoint.h"
#include "coppice/models/load.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

// An asset's path in $COPPICE_ASSETS, or in a folder "shared" beside the repository; or empty.
std::string find_asset(const std::string& name) {
  std::vector<fs::path> folders;
  if (const char* assets = std::getenv("COPPICE_ASSETS")) folders.emplace_back(assets);
  if (const char* home = std::getenv("HOME")) {
    folders.push_back(fs::path(home) / ".cache/coppice/assets");
  }
  folders.push_back(fs::path(COPPICE_SOURCE_DIR) / "../shared/data");
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / name)) return (folder / name).string();
  }
  return {};
}

struct RealModel {
  std::shared_ptr<Model> model;
  std::vector<int32_t> ids;  // of the text
};

RealModel load_real(const std::string& model_file, bool gated) {
  RealModel real;
  const std::string path = find_asset(model_file);
  const std::string text = find_asset("persuasion-120k.txt");
  const std::string gate_path = find_asset("gate-trial-smollm2-135m.safetensors");
  if (path.empty() || text.empty() || (gated && gate_path.empty())) return real;
  const Checkpoint checkpoint = Checkpoint::open(path);
  if (gated) {
    const GateWeights gate = load_gate(gate_path);
    real.model = load_model(checkpoint, WeightMode::kFloat32, &gate);
  } else {
    real.model = load_model(checkpoint, WeightMode::kFloat32);
  }
  // 120,000 characters are far more tokens than any test reads.
  real.ids = load_tokenizer(checkpoint).encode(read_text_file(text).substr(0, 40000));
  return real;
}

EvictionConfig eviction_of(const Json& row) {
  EvictionConfig config;
  const std::string policy = row["policy"];
  config.policy = policy.substr(0, policy.find(','));
  if (config.policy == "full") return config;
  config.budget_entries = row["budget_entries_per_head"];
  const bool protects = policy.find("nothing protected") == std::string::npos;
  config.sinks = protects ? 4 : 0;
  config.recent = policy.find("16 newest") == std::string::npos ? 0 : 16;
  return config;
}

void expect_row(const Json& row, const PerplexityResult& result) {
  const double expected = row["perplexity"];
  EXPECT_NEAR(result.perplexity, expected, 0.003 * expected);
  EXPECT_EQ(result.scored_tokens, row["scored"]);
  if (row["kept_total"].is_null()) return;
  EXPECT_EQ(result.kept_entries, row["kept_total"]);
  for (std::size_t layer = 0; layer < result.kept_per_layer.size(); ++layer) {
    const double kept = row["kept_per_layer"][layer];
    EXPECT_NEAR(static_cast<double>(result.kept_per_layer[layer]), kept, 0.01 * kept) << layer;
  }
}

TEST(Oracle, every_row_of_the_gate_trial) {
  const RealModel real = load_real("SmolLM2-135M-Instruct.Q4_1.gguf", /*gated=*/true);
  if (!real.model) GTEST_SKIP() << "needs the default model, its trial gate and the text";
  const Json oracle = parse_json(
      read_text_file(std::string(COPPICE_SOURCE_DIR) + "/tests/golden/gate-trial-oracle.json"),
      "gate-trial-oracle.json");
  for (const Json& row : oracle["rows"]) {
    SCOPED_TRACE(row["policy"].dump() + ", budget " + row["budget_entries_per_head"].dump());
    PerplexityOptions options{.context_tokens = 2048, .contexts = 1, .chunk_tokens = 32};
    options.eviction = eviction_of(row);
    const PerplexityResult result = evaluate_perplexity(*real.model, real.ids, options);
    expect_row(row, result);
    std::printf("%-40s %4s: perplexity %.4f (expected %.4f), rows %ld to %ld, %.1f s\n",
                row["policy"].get<std::string>().c_str(),
                row["budget_entries_per_head"].dump().c_str(), result.perplexity,
                row["perplexity"].get<double>(), result.shortest_row, result.longest_row,
                result.seconds);
    std::fflush(stdout);
  }
}

void expect_running(const std::string& file, int64_t context, double first, double both) {
  const RealModel real = load_real(file, /*gated=*/false);
  if (!real.model) GTEST_SKIP() << "needs " << file << " and the text";
  const PerplexityOptions options{.context_tokens = context,
                                  .contexts = 2,
                                  .eviction = {.policy = "full"},
                                  .chunk_tokens = 256};
  const PerplexityResult result = evaluate_perplexity(*real.model, real.ids, options);
  EXPECT_NEAR(result.running_perplexity[0], first, 0.003 * first);
  EXPECT_NEAR(result.running_perplexity[1], both, 0.003 * both);
  std::printf("%s: %.4f, %.4f in %.1f s\n", file.c_str(), result.running_perplexity[0],
              result.running_perplexity[1], result.seconds);
}

TEST(Oracle, smollm2_full_cache) {
  expect_running("SmolLM2-135M-Instruct.Q4_1.gguf", 1024, 35.15, 37.62);
}

TEST(Oracle, qwen2_5_coder_full_cache) {
  if (std::getenv("COPPICE_SLOW_TESTS") == nullptr) {
    GTEST_SKIP() << "set COPPICE_SLOW_TESTS to run it";
  }
  expect_running("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 512, 37.70, 49.13);
}

}  // namespace
}  // namespace coppice
