#include "coppice/engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "coppice/core/error.h"
#include "coppice/core/log.h"

namespace coppice {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

// To float32 without leaving its finite range: a score may grow large, but not become a fault.
float to_score(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

bool is_fault(float score) { return std::isnan(score) || score == -kBanned; }

struct Scan {
  int64_t best = -1;  // lowest id of the highest score above -Inf; -1: there is none
  int64_t faults = 0;
};

Scan scan(std::span<const float> scores) {
  Scan result;
  float best = kBanned;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > best && scores[i] != -kBanned) {
      best = scores[i];
      result.best = static_cast<int64_t>(i);
    } else if (is_fault(scores[i])) {
      ++result.faults;
    }
  }
  return result;
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, int64_t vocab_size)
    : params_(params),
      vocab_size_(vocab_size),
      seed_(params.seed ? *params.seed : Rng::entropy_seed()),
      rng_(seed_) {
  validate(params, vocab_size);
}

void Sampler::note_prompt(std::span<const int32_t> ids) {
  if (params_.repetition_penalty == 1.0) return;
  for (const int32_t id : ids) generated_.try_emplace(id, 0);
}

SampledToken Sampler::sample(std::span<const float> logits) {
  COPPICE_CHECK(static_cast<int64_t>(logits.size()) == vocab_size_,
                "a row of scores has {} values, expected {}", logits.size(), vocab_size_);
  const std::span<const float> scores = adjusted(logits);
  const Scan found = scan(scores);
  if (found.best < 0) {
    fail(ErrorCode::kInternal,
         "the model gave no usable score for any of {} tokens ({} are NaN or infinite), expected "
         "at least one finite score",
         vocab_size_, found.faults);
  }
  SampledToken token;
  if (found.faults > 0) {
    warn_about_fault(found.faults);
    token.id = static_cast<int32_t>(found.best);
  } else if (params_.greedy()) {
    token.id = static_cast<int32_t>(found.best);
  } else {
    token.id = draw(scores, scores[static_cast<std::size_t>(found.best)]);
  }
  if (params_.logprobs) fill_logprobs(logits, *params_.logprobs, token);
  if (counts_tokens()) ++generated_[token.id];
  return token;
}

bool Sampler::counts_tokens() const {
  return params_.repetition_penalty != 1.0 || params_.presence_penalty != 0.0 ||
         params_.frequency_penalty != 0.0;
}

// Bias, then penalties. Faults stay what they are, so that they are found afterwards.
std::span<const float> Sampler::adjusted(std::span<const float> logits) {
  if (params_.logit_bias.empty() && !counts_tokens()) return logits;
  scores_.assign(logits.begin(), logits.end());
  for (const auto& [id, bias] : params_.logit_bias) {
    float& score = scores_[static_cast<std::size_t>(id)];
    if (std::isfinite(score)) score = to_score(score + bias);
  }
  for (const auto& [id, count] : generated_) {
    float& score = scores_[static_cast<std::size_t>(id)];
    if (!std::isfinite(score)) continue;
    double value = score;
    value = value > 0 ? value / params_.repetition_penalty : value * params_.repetition_penalty;
    if (count > 0) {
      value -= params_.presence_penalty + params_.frequency_penalty * static_cast<double>(count);
    }
    score = to_score(value);
  }
  return scores_;
}

// exp((score - best) / temperature), from 0 to 1; `best` has weight 1.
double Sampler::weight(float score, float best) const {
  return std::exp((static_cast<double>(score) - static_cast<double>(best)) / params_.temperature);
}

int32_t Sampler::draw(std::span<const float> scores, float best) {
  const bool top_k = params_.top_k > 0 && params_.top_k < vocab_size_;
  candidates_.clear();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > kBanned) candidates_.push_back({scores[i], static_cast<int32_t>(i)});
  }
  if (top_k && params_.top_k < static_cast<int64_t>(candidates_.size())) {
    std::nth_element(candidates_.begin(), candidates_.begin() + params_.top_k, candidates_.end(),
                     before);
    candidates_.resize(static_cast<std::size_t>(params_.top_k));
    // Back to the order of ids: selection leaves one that depends on the library.
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }
  if (params_.top_p < 1.0) keep_nucleus(best);
  return draw_weighted(best);
}

// The fewest best candidates that hold at least top_p of the probability.
void Sampler::keep_nucleus(float best) {
  double total = 0.0;
  for (const Candidate& c : candidates_) total += weight(c.score, best);
  const auto worse = [](const Candidate& a, const Candidate& b) { return before(b, a); };
  std::make_heap(candidates_.begin(), candidates_.end(), worse);
  double held = 0.0;
  auto end = candidates_.end();  // [end, candidates_.end()) is the nucleus, worst first
  while (end != candidates_.begin() && held < params_.top_p * total) {
    std::pop_heap(candidates_.begin(), end, worse);
    --end;
    held += weight(end->score, best);
  }
  candidates_.erase(candidates_.begin(), end);
}

// One draw from what is left, min-p applied. The best candidate is always among them.
int32_t Sampler::draw_weighted(float best) {
  weights_.clear();
  double total = 0.0;
  for (const Candidate& c : candidates_) {
    const double w = weight(c.score, best);
    weights_.push_back(w >= params_.min_p ? w : 0.0);
    total += weights_.back();
  }
  double left = rng_.uniform() * total;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0.0) continue;
    last = i;  // also the answer when rounding leaves a rest
    left -= weights_[i];
    if (left < 0.0) break;
  }
  return candidates_[last].id;
}

// Once for each power of two, so that a broken model is heard and does not flood the log.
void Sampler::warn_about_fault(int64_t faults) {
  ++faulty_rows_;
  if (!std::has_single_bit(static_cast<uint64_t>(faulty_rows_))) return;
  log_warning(
      "{} of {} scores of the model are NaN or infinite; the best finite one is taken ({} {})",
      faults, vocab_size_, faulty_rows_, faulty_rows_ == 1 ? "token so far" : "tokens so far");
}

}  // namespace coppice
