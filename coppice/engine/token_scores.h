// Log-probabilities of tokens, from the model's own scores: before bias, penalties and temperature.
// Float64 log-softmax over the scores that are not faults (NaN, +Inf). No state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0F;  // natural log
};

struct SampledToken {
  int32_t id = 0;
  float logprob = 0.0F;           // 0 unless SamplingParams::logprobs is set
  std::vector<TokenLogprob> top;  // best first, lower id first where equal; empty unless asked for
};

// logits [V] float32. Fills in token.logprob and the `tops` best; leaves both where no score is
// usable. -Inf for a token whose own score is a fault.
void fill_logprobs(std::span<const float> logits, int64_t tops, SampledToken& token);

}  // namespace coppice
