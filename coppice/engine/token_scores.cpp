#include "coppice/engine/token_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace coppice {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

bool is_fault(float score) { return std::isnan(score) || score == -kBanned; }

}  // namespace

void fill_logprobs(std::span<const float> logits, int64_t tops, SampledToken& token) {
  float best = kBanned;
  for (const float score : logits) {
    if (score > best && !is_fault(score)) best = score;
  }
  if (best == kBanned) return;
  double total = 0.0;
  for (const float score : logits) {
    if (!is_fault(score)) total += std::exp(static_cast<double>(score) - best);
  }
  const double log_total = std::log(total) + best;
  const auto logprob = [&](int32_t id) {
    const float score = logits[static_cast<std::size_t>(id)];
    return is_fault(score) ? kBanned : static_cast<float>(score - log_total);
  };
  token.logprob = logprob(token.id);
  std::vector<TokenLogprob> top;  // with scores in place of log-probabilities
  for (std::size_t i = 0; i < logits.size() && tops > 0; ++i) {
    const TokenLogprob candidate{static_cast<int32_t>(i), logits[i]};
    if (is_fault(candidate.logprob)) continue;
    if (static_cast<int64_t>(top.size()) == tops) {  // an equal one with a lower id stays
      if (candidate.logprob <= top.back().logprob) continue;
      top.pop_back();
    }
    const auto better = [](const TokenLogprob& a, const TokenLogprob& b) {
      return a.logprob > b.logprob;
    };
    top.insert(std::upper_bound(top.begin(), top.end(), candidate, better), candidate);
  }
  for (TokenLogprob& candidate : top) candidate.logprob = logprob(candidate.id);
  token.top = std::move(top);
}

}  // namespace coppice
