#include "coppice/engine/sampling_params.h"

#include <cmath>
#include <limits>
#include <string_view>

#include "coppice/core/error.h"

namespace coppice {
namespace {

void check_range(std::string_view name, double value, double low, double high) {
  if (!(value >= low && value <= high)) {  // also refuses NaN
    fail_argument("{} must be from {} to {}, got {}", name, low, high, value);
  }
}

void check_token(std::string_view name, int64_t id, int64_t vocab_size) {
  if (id < 0 || id >= vocab_size) {
    fail_argument("{} holds token id {}, expected 0 to {} (the vocabulary)", name, id,
                  vocab_size - 1);
  }
}

void check_stops(const SamplingParams& params) {
  if (params.stop.size() > static_cast<std::size_t>(kMaxStopStrings)) {
    fail_argument("at most {} stop strings are allowed, got {}", kMaxStopStrings,
                  params.stop.size());
  }
  for (const std::string& stop : params.stop) {
    if (stop.empty()) fail_argument("a stop string must not be empty");
    if (stop.size() > static_cast<std::size_t>(kMaxStopBytes)) {
      fail_argument("a stop string may have at most {} bytes, got {}", kMaxStopBytes, stop.size());
    }
  }
}

}  // namespace

void validate(const SamplingParams& params, int64_t vocab_size) {
  constexpr double kMax = std::numeric_limits<double>::max();
  check_range("temperature", params.temperature, 0.0, kMax);
  if (params.top_k < -1) {
    fail_argument("top_k must be above 0, or 0 or -1 for off, got {}", params.top_k);
  }
  check_range("top_p", params.top_p, 0.0, 1.0);
  check_range("min_p", params.min_p, 0.0, 1.0);
  if (!(params.repetition_penalty > 0.0 && params.repetition_penalty <= kMax)) {
    fail_argument("repetition_penalty must be above 0 and finite, got {}",
                  params.repetition_penalty);
  }
  check_range("presence_penalty", params.presence_penalty, -2.0, 2.0);
  check_range("frequency_penalty", params.frequency_penalty, -2.0, 2.0);
  for (const auto& [id, bias] : params.logit_bias) {
    check_token("logit_bias", id, vocab_size);
    check_range("logit_bias value", bias, -100.0, 100.0);
  }
  if (params.max_tokens && *params.max_tokens < 0) {
    fail_argument("max_tokens must be 0 or more, got {}", *params.max_tokens);
  }
  check_stops(params);
  for (const int64_t id : params.stop_token_ids) check_token("stop_token_ids", id, vocab_size);
  if (params.logprobs && (*params.logprobs < 0 || *params.logprobs > kMaxTopLogprobs)) {
    fail_argument("logprobs must be from 0 to {}, got {}", kMaxTopLogprobs, *params.logprobs);
  }
}

}  // namespace coppice
