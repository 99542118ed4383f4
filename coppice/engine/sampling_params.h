// How the next token is chosen, and when a generation ends. A plain aggregate: validate() once,
// then const.
//
// Documented rules:
//   temperature   0 and anything up to kGreedyTemperature is arg-max; negative or NaN is refused
//   top_k         0 and -1 are off; more than the vocabulary is all of it; below -1 is refused
//   top_p         in [0, 1]; 0 is the single best token
//   min_p         in [0, 1]; keeps tokens at least min_p times as probable as the best one
//   repetition_penalty  > 0; divides positive and multiplies negative scores, once for each
//   distinct
//                       token of the prompt and of what was generated
//   presence_penalty, frequency_penalty  in [-2, 2]; count generated tokens alone
//   logit_bias    added to the scores first; ids in the vocabulary, values in [-100, 100]
//   max_tokens    0 reads the prompt and generates nothing; absent: as many as positions and memory
//                 allow, then finish_reason `length`
// Thread-safe: no state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace coppice {

inline constexpr double kGreedyTemperature = 1e-5;
inline constexpr int64_t kMaxStopStrings = 16;
inline constexpr int64_t kMaxStopBytes = 4096;  // of one stop string
inline constexpr int64_t kMaxTopLogprobs = 20;

struct SamplingParams {
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::map<int64_t, double> logit_bias = {};  // by token id
  std::optional<uint64_t> seed = {};          // absent: a new one for every request

  std::optional<int64_t> max_tokens = {};
  std::vector<std::string> stop = {};  // ends the text before the first of them; none is empty
  std::vector<int64_t> stop_token_ids = {};  // end tokens of this request, whatever ignore_eos says
  bool ignore_eos = false;                   // the model's own end tokens do not end it

  // Absent: no log-probabilities. n: of each token drawn and of the n best, from the model's own
  // scores before bias, penalties and temperature.
  std::optional<int64_t> logprobs = {};

  // The draw is arg-max, whatever the seed.
  bool greedy() const { return temperature <= kGreedyTemperature || top_p == 0.0 || top_k == 1; }
};

// Throws kInvalidArgument naming the field, what was expected and what was got.
void validate(const SamplingParams& params, int64_t vocab_size);

}  // namespace coppice
