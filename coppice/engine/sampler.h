// Scores of one position to the next token of one sequence.
//
// Order: logit bias, repetition penalty, presence and frequency penalties, temperature, top-k,
// top-p, min-p, one draw. Equal scores rank by token id, lower first, so arg-max is the lowest of
// the best. Probabilities are float64. The whole vocabulary is never sorted: arg-max is one scan,
// top-k a partial selection, top-p a heap taken down as far as it must.
//
// Scores that are NaN or +Inf mark a fault of the model: the draw is then the arg-max of the finite
// scores, with a logged warning. A row without a finite score throws kInternal, which ends that
// request alone. -Inf is a banned token.
//
// One Sampler per sequence: its random stream and its history belong to the sequence, so the other
// members of a batch change nothing. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "coppice/core/rng.h"
#include "coppice/engine/sampling_params.h"
#include "coppice/engine/token_scores.h"

namespace coppice {

class Sampler final {
 public:
  // Validates `params`.
  Sampler(const SamplingParams& params, int64_t vocab_size);

  // Tokens the model reads but did not generate: they count for the repetition penalty alone.
  // REQUIRES: 0 <= id < vocab_size.
  void note_prompt(std::span<const int32_t> ids);
  // logits [V] float32. The token drawn counts as generated.
  SampledToken sample(std::span<const float> logits);

  uint64_t seed() const { return seed_; }  // the one given, or the one that was drawn

 private:
  struct Candidate {
    float score;
    int32_t id;
  };
  // Higher score first, then lower id.
  static bool before(const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.id < b.id);
  }

  bool counts_tokens() const;
  std::span<const float> adjusted(std::span<const float> logits);
  double weight(float score, float best) const;
  int32_t draw(std::span<const float> scores, float best);
  void keep_nucleus(float best);
  int32_t draw_weighted(float best);
  void warn_about_fault(int64_t faults);

  SamplingParams params_;
  int64_t vocab_size_;
  uint64_t seed_;
  Rng rng_;
  std::unordered_map<int32_t, int64_t> generated_;  // id -> times generated; 0 for prompt tokens
  std::vector<float> scores_;                       // [V], scratch
  std::vector<Candidate> candidates_;               // scratch
  std::vector<double> weights_;                     // scratch
  int64_t faulty_rows_ = 0;
};

}  // namespace coppice
