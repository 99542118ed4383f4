#include "coppice/models/model_args.h"

#include <gtest/gtest.h>

#include "coppice/core/error.h"

namespace coppice {
namespace {

Json config(const std::string& model_type = "llama") {
  return {{"model_type", model_type}, {"hidden_size", 64},
          {"intermediate_size", 96},  {"num_hidden_layers", 2},
          {"num_attention_heads", 8}, {"num_key_value_heads", 2},
          {"vocab_size", 128},        {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},    {"max_position_embeddings", 512}};
}

// The Error's text, or "" when the config is accepted.
std::string refusal(const Json& value) {
  try {
    ModelArgs::from_config(value);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void expect_refused(const Json& value, const std::string& part) {
  const std::string message = refusal(value);
  EXPECT_NE(message.find(part), std::string::npos)
      << "expected a refusal about " << part << ", got \"" << message << "\"";
}

TEST(ModelArgs, reads_what_is_there_and_fills_in_the_usual_rest) {
  const ModelArgs args = ModelArgs::from_config(config());
  EXPECT_EQ(args.head_dim, 8);
  EXPECT_EQ(args.num_key_value_heads, 2);
  EXPECT_EQ(args.rope.rope_type, "default");
  EXPECT_DOUBLE_EQ(args.rope_theta, 10000.0);
  EXPECT_FALSE(args.tie_word_embeddings);
  Json without = config();
  without.erase("num_key_value_heads");
  without["head_dim"] = nullptr;
  EXPECT_EQ(ModelArgs::from_config(without).num_key_value_heads, 8);
}

TEST(ModelArgs, L19_head_dim_apart) {
  Json value = config("qwen3");
  value["head_dim"] = 16;
  EXPECT_EQ(ModelArgs::from_config(value).head_dim, 16);
  value["hidden_size"] = 60;  // no multiple of the heads, and need not be
  EXPECT_EQ(ModelArgs::from_config(value).head_dim, 16);
  value.erase("head_dim");
  expect_refused(value, "head_dim");
}

TEST(ModelArgs, L20_llama3_scaling_under_every_key) {
  const Json scaling = {{"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  for (const char* object : {"rope_scaling", "rope_parameters"})
    for (const char* key : {"rope_type", "type"}) {
      Json value = config();
      value[object] = scaling;
      value[object][key] = "llama3";
      const ModelArgs args = ModelArgs::from_config(value);
      EXPECT_EQ(args.rope.rope_type, "llama3");
      EXPECT_DOUBLE_EQ(args.rope.factor, 8.0);
      EXPECT_DOUBLE_EQ(args.rope.low_freq_factor, 1.0);
      EXPECT_DOUBLE_EQ(args.rope.high_freq_factor, 4.0);
      EXPECT_EQ(args.rope.original_max_position_embeddings, 8192);
    }
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    Json value = config();
    value["rope_scaling"] = scaling;
    value["rope_scaling"]["rope_type"] = "llama3";
    value["rope_scaling"].erase(key);
    expect_refused(value, key);
  }
}

TEST(ModelArgs, rope_theta_inside_rope_parameters) {
  Json value = config();
  value.erase("rope_theta");
  value["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  EXPECT_DOUBLE_EQ(ModelArgs::from_config(value).rope_theta, 5e5);
}

TEST(ModelArgs, L21_unknown_architecture_is_named_as_such) {
  for (const char* type : {"qwen3_moe", "qwen2_vl", "", "LLAMA"}) {
    const std::string message = refusal(config(type));
    EXPECT_NE(message.find("is not supported"), std::string::npos) << message;
    EXPECT_NE(message.find("llama, qwen2, qwen3"), std::string::npos) << message;
  }
  // Even when nothing else is as expected.
  expect_refused(Json{{"model_type", "gemma3"}}, "\"gemma3\" is not supported");
}

TEST(ModelArgs, refuses_what_is_missing_or_out_of_range) {
  for (const char* key : {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    Json value = config();
    value.erase(key);
    expect_refused(value, key);
  }
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size",
                          "num_attention_heads", "num_key_value_heads", "head_dim"})
    for (const Json& bad : {Json(0), Json(-8), Json(1.5), Json("64"), Json::array({64}), Json(true),
                            Json(int64_t{1} << 40), Json(~uint64_t{0})}) {
      Json value = config();
      value[key] = bad;
      expect_refused(value, key);
    }
  for (const Json& bad : {Json(0), Json(-1e-5), Json("small")}) {
    Json value = config();
    value["rms_norm_eps"] = bad;
    expect_refused(value, "rms_norm_eps");
    value = config();
    value["rope_theta"] = bad;
    expect_refused(value, "rope_theta");
  }
  Json value = config();
  value["num_key_value_heads"] = 3;
  expect_refused(value, "multiple");
  value = config();
  value["head_dim"] = 7;
  expect_refused(value, "even");
  value = config();
  value["tie_word_embeddings"] = "yes";
  expect_refused(value, "tie_word_embeddings");
  expect_refused(Json::array(), "object");
}

TEST(ModelArgs, refuses_what_it_would_have_to_ignore) {
  Json value = config();
  value["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  expect_refused(value, "yarn");
  value = config();
  value["hidden_act"] = "gelu";
  expect_refused(value, "gelu");
  value = config("qwen2");
  value["use_sliding_window"] = true;
  expect_refused(value, "sliding");
  value = config();
  value["quantization_config"] = {{"quant_method", "gptq"}};
  expect_refused(value, "quantization_config");
  value = config();
  value["partial_rotary_factor"] = 0.5;
  expect_refused(value, "partial_rotary_factor");
}

}  // namespace
}  // namespace coppice
