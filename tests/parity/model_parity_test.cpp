// Every architecture, from both file formats, against what `transformers` computed
// (tools/make_model_golden.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "coppice/core/error.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/models/decoder.h"
#include "tests/parity/golden_model.h"

namespace coppice {
namespace {

constexpr double kTolerance = 1e-4;

struct Source {
  std::string name;    // the case
  std::string format;  // "hf" or "gguf"
};

std::ostream& operator<<(std::ostream& out, const Source& source) {
  return out << source.name << " " << source.format;
}

std::vector<Source> all_sources() {
  std::vector<Source> sources;
  for (const std::string& name : golden::cases())
    for (const char* format : {"hf", "gguf"}) sources.push_back({name, format});
  return sources;
}

std::string path_of(const Source& source) {
  return golden::folder(source.name) + (source.format == "hf" ? "/hf" : "/model.gguf");
}

std::shared_ptr<Model> load(const Source& source) {
  return load_model(Checkpoint::open(path_of(source)), WeightMode::kFloat32);
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

class ModelParity : public testing::TestWithParam<Source> {};

TEST_P(ModelParity, logits) {
  const auto model = load(GetParam());
  const at::Tensor logits = golden::all_logits(*model, golden::expected(GetParam().name, "prompt"));
  EXPECT_LE(largest_difference(logits, golden::expected(GetParam().name, "logits")), kTolerance);
}

TEST_P(ModelParity, greedy_generation) {
  const auto model = load(GetParam());
  const auto prompt = golden::to_vector(golden::expected(GetParam().name, "prompt"));
  const auto wanted = golden::to_vector(golden::expected(GetParam().name, "generated"));
  ASSERT_EQ(wanted.size(), 64u);
  EXPECT_EQ(golden::greedy(*model, prompt, static_cast<int64_t>(wanted.size())), wanted);
}

TEST_P(ModelParity, rotary_frequencies) {
  const Checkpoint checkpoint = Checkpoint::open(path_of(GetParam()));
  const auto model = load_model(checkpoint, WeightMode::kFloat32);
  const at::Tensor wanted = golden::expected(GetParam().name, "inv_freq");
  const at::Tensor got = models::make_rope_table(model->args()).inv_freq();
  EXPECT_LE(((got - wanted) / wanted).abs().max().item<double>(), 1e-6);
}

// Packed weights round: to bfloat16 here, which these weights are already, so only the activations
// that a product rounds may differ.
TEST_P(ModelParity, packed_weights_stay_close) {
  const auto model = load_model(Checkpoint::open(path_of(GetParam())), WeightMode::kPacked);
  const at::Tensor logits = golden::all_logits(*model, golden::expected(GetParam().name, "prompt"));
  const at::Tensor wanted = golden::expected(GetParam().name, "logits");
  EXPECT_LE(largest_difference(logits, wanted), 0.05 * wanted.abs().max().item<double>());
}

INSTANTIATE_TEST_SUITE_P(All, ModelParity, testing::ValuesIn(all_sources()),
                         [](const testing::TestParamInfo<Source>& info) {
                           std::string name = info.param.name + "_" + info.param.format;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

TEST(Models, L19_head_dim_apart_from_hidden_size) {
  const auto model = load({"qwen3", "hf"});
  EXPECT_EQ(model->args().head_dim, 16);
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["model.layers.0.self_attn.q_proj.weight"].sizes(),
            (std::vector<int64_t>{128, 64}));
}

TEST(Models, L20_llama3_scaling_at_far_positions) {
  for (const char* format : {"hf", "gguf"}) {
    const auto model = load({"llama-rope3", format});
    const at::Tensor prompt = golden::expected("llama-rope3", "prompt");
    for (int64_t position : {10, 9000, 60000}) {
      const at::Tensor wanted =
          golden::expected("llama-rope3", "logits_at_" + std::to_string(position));
      const at::Tensor got = golden::all_logits(*model, prompt, position);
      EXPECT_LE(largest_difference(got, wanted), kTolerance) << format << " at " << position;
    }
  }
}

std::string asset(const std::string& name) {
  const char* set = std::getenv("COPPICE_ASSETS");
  const char* home = std::getenv("HOME");
  const std::string root = set != nullptr ? set : std::string(home) + "/.cache/coppice/assets";
  return root + "/" + name;
}

TEST(RealModel, smollm2_answers_paris) {
  const std::string path = asset("SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path << ": run make assets";
  const auto model = load_model(Checkpoint::open(path), WeightMode::kFloat32);
  // ChatML: the template's own system turn, then "What is the capital of France?"
  const std::vector<int64_t> prompt = {
      1,   9690, 198, 2683, 359,   253,  5356, 5646, 11173, 3365, 3511, 308,  34519,
      28,  7018, 411, 407,  19712, 8182, 2,    198,  1,     4093, 198,  1780, 314,
      260, 3575, 282, 4649, 47,    2,    198,  1,    520,   9531, 198};
  const std::vector<int64_t> answer = {504, 3575, 282, 4649,
                                       314, 7042, 30,  2};  // and its answer, with the end token
  EXPECT_EQ(golden::greedy(*model, prompt, static_cast<int64_t>(answer.size())), answer);
}

}  // namespace
}  // namespace coppice
