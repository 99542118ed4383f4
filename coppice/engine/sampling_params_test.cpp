#include "coppice/engine/sampling_params.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "coppice/core/error.h"

namespace coppice {
namespace {

constexpr int64_t kVocab = 100;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// True when the settings are accepted; the message must name `field` when they are not.
bool accepted(const std::string& field, const std::function<void(SamplingParams&)>& set) {
  SamplingParams params;
  set(params);
  try {
    validate(params, kVocab);
    return true;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find(field), std::string::npos) << e.what();
    return false;
  }
}

TEST(SamplingParams, defaults_are_valid) { validate(SamplingParams{}, kVocab); }

TEST(SamplingParams, S02_temperature) {
  const auto with = [](double value) {
    return accepted("temperature", [=](SamplingParams& p) { p.temperature = value; });
  };
  for (const double good : {0.0, 1e-300, 1e-40, 1e-8, 0.7, 1.0, 100.0}) EXPECT_TRUE(with(good));
  for (const double bad : {-1.0, -1e-300, kNan, kInf, -kInf}) EXPECT_FALSE(with(bad));
}

TEST(SamplingParams, S03_top_p_and_min_p) {
  for (const double good : {0.0, 0.5, 1.0}) {
    EXPECT_TRUE(accepted("top_p", [=](SamplingParams& p) { p.top_p = good; }));
    EXPECT_TRUE(accepted("min_p", [=](SamplingParams& p) { p.min_p = good; }));
  }
  for (const double bad : {1.5, -0.1, kNan, kInf}) {
    EXPECT_FALSE(accepted("top_p", [=](SamplingParams& p) { p.top_p = bad; }));
    EXPECT_FALSE(accepted("min_p", [=](SamplingParams& p) { p.min_p = bad; }));
  }
}

TEST(SamplingParams, S04_top_k) {
  for (const int64_t good : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{9999999}}) {
    EXPECT_TRUE(accepted("top_k", [=](SamplingParams& p) { p.top_k = good; }));
  }
  EXPECT_FALSE(accepted("top_k", [](SamplingParams& p) { p.top_k = -2; }));
}

TEST(SamplingParams, S05_logit_bias) {
  const auto with = [](int64_t id, double value) {
    return accepted("logit_bias", [=](SamplingParams& p) { p.logit_bias = {{id, value}}; });
  };
  EXPECT_TRUE(with(0, -100));
  EXPECT_TRUE(with(kVocab - 1, 100));
  for (const int64_t bad : {int64_t{-1}, kVocab, int64_t{191222}}) EXPECT_FALSE(with(bad, 1.0));
  for (const double bad : {1e9, 100.5, -101.0, kNan, kInf, -kInf}) EXPECT_FALSE(with(1, bad));
}

TEST(SamplingParams, S10_penalties) {
  const auto repetition = [](double value) {
    return accepted("repetition_penalty", [=](SamplingParams& p) { p.repetition_penalty = value; });
  };
  EXPECT_TRUE(repetition(1.5));
  for (const double bad : {0.0, -1.0, kNan, kInf}) EXPECT_FALSE(repetition(bad));
  for (const double bad : {2.1, -2.1, kNan}) {
    EXPECT_FALSE(
        accepted("presence_penalty", [=](SamplingParams& p) { p.presence_penalty = bad; }));
    EXPECT_FALSE(
        accepted("frequency_penalty", [=](SamplingParams& p) { p.frequency_penalty = bad; }));
  }
}

TEST(SamplingParams, A02_A03_limits_of_stops_and_lengths) {
  EXPECT_FALSE(accepted("stop string", [](SamplingParams& p) { p.stop = {"a", ""}; }));
  EXPECT_TRUE(accepted("stop", [](SamplingParams& p) { p.stop = {"1", "2", "3", "4", "5"}; }));
  EXPECT_FALSE(accepted("stop", [](SamplingParams& p) { p.stop.assign(17, "x"); }));
  EXPECT_FALSE(accepted("stop", [](SamplingParams& p) { p.stop = {std::string(4097, 'x')}; }));
  EXPECT_TRUE(accepted("max_tokens", [](SamplingParams& p) { p.max_tokens = 0; }));
  EXPECT_FALSE(accepted("max_tokens", [](SamplingParams& p) { p.max_tokens = -1; }));
  EXPECT_FALSE(accepted("stop_token_ids", [](SamplingParams& p) { p.stop_token_ids = {kVocab}; }));
  EXPECT_FALSE(accepted("logprobs", [](SamplingParams& p) { p.logprobs = 21; }));
  EXPECT_FALSE(accepted("logprobs", [](SamplingParams& p) { p.logprobs = -1; }));
}

}  // namespace
}  // namespace coppice
