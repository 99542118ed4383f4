// What an entry is worth. One file per scorer; the table in policies.cpp joins them with scopes.
//
// No scorer returns a NaN for numbers a model can produce: log_beta <= 0, minus infinity included.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace coppice {

// What a scorer reads besides positions. A policy that needs nothing pays nothing.
struct ScorerNeeds {
  bool gate = false;      // log_beta must come from a gate
  bool key_norm = false;  // aux holds the norm of the key, written at append
  bool place = false;     // aux depends on where the entry stands

  bool any() const { return gate || key_norm || place; }
};

// An entry as it is appended.
struct ScoredEntry {
  int64_t layer = 0;
  int64_t head = 0;
  int64_t position = 0;
  float log_beta = 0.0f;
  std::span<const float> key = {};  // [D]; empty where needs() does not name the key
};

// An entry's score, higher is kept, as a line in its age:
//
//   score = (newest - position + age_offset) x slope + aux_weight x aux
//
// in float32, each step rounded. `newest` is the position of the newest token.
struct ScoreForm {
  bool slope_is_log_beta = false;
  float slope = 0.0f;  // where log_beta is not
  float age_offset = 0.0f;
  float aux_weight = 0.0f;
};

class Scorer {
 public:
  virtual ~Scorer() = default;
  virtual std::string_view name() const = 0;
  virtual ScorerNeeds needs() const = 0;
  virtual ScoreForm form() const = 0;
  // The number to keep per entry in aux. Not asked for where needs() names nothing.
  virtual float aux(const ScoredEntry& entry) const;
};

// The newest entries: score = -age. StreamingLLM (arXiv:2309.17453) with its sinks protected.
std::unique_ptr<Scorer> make_streaming_scorer();

// Keys of low norm: score = -|k| (arXiv:2406.11430), of the key as it is stored.
std::unique_ptr<Scorer> make_knorm_scorer();

// Chance: a number in [0, 1) that depends on the seed and on layer, head and position alone, so
// what stays of a head is a fair draw of all tokens so far, whatever the chunks. The floor of every
// comparison.
std::unique_ptr<Scorer> make_random_scorer(uint64_t seed);

// Retention: the log of what an entry is expected to weigh over the next `lookahead` steps,
//   log sum_{s=t+1}^{t+n} beta^(s-i) = (t + 1 - i) log beta + f(log beta),
//   f = log((1 - beta^n) / (1 - beta)), log n at beta = 1,
// with f kept in aux. `parity_reference` shifts the ages as the published code does: one step for
// n = 1, two for n >= 2 (its NaN at beta = 1 is not reproduced).
// Source: arXiv:2605.09649, section on global eviction.
std::unique_ptr<Scorer> make_retention_scorer(int64_t lookahead, bool parity_reference);

// f above, in double and rounded once. 0 for lookahead 1. `log_beta` above 0 or NaN counts as 0.
float retention_tail(float log_beta, int64_t lookahead);

}  // namespace coppice
