// What an entry is worth. One file per scorer; the table in policies.cpp joins them with scopes.
//
// Most scorers give an entry its worth once, when it is appended. Those that look at attention are
// shown the queries of each pass (observe), take what the pass brought when it is committed (note),
// and write all scores anew before a choice (judge). They compute the probabilities they need from
// queries and stored keys: attention itself stays as it is. What they keep of a sequence lives with
// it in the cache (KvCache::notes, aux); a scorer is free of state, so one serves many sequences.
//
// No scorer returns a NaN for numbers a model can produce: log_beta of a retention gate is <= 0,
// minus infinity included.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "coppice/eviction/pins.h"
#include "coppice/eviction/sequence_view.h"

namespace coppice {

// What a scorer reads besides positions. A policy that needs nothing pays nothing.
struct ScorerNeeds {
  std::string_view gate = {};  // log_beta is what a gate of this kind says, as gate files name it
  bool key_norm = false;       // aux holds the norm of the key, written at append
  bool place = false;          // aux depends on where the entry stands
  bool queries = false;        // observe() is shown every pass
  bool rope = false;           // and what its queries were rotated by
  bool rescored = false;       // aux is written by judge(), before every choice

  // aux() is asked for every entry.
  bool entry_aux() const { return !gate.empty() || key_norm || place; }
};

// One layer's queries of a pass, whose entries were appended.
struct PassQueries {
  int64_t layer = 0;
  at::Tensor q;  // [T, Hq, D] float32: rotated, times the scale of the scores
  // Where needs() names rope: the angles that the queries were rotated by, and the model's
  // frequencies.
  at::Tensor turns;     // [T, D/2] float64
  at::Tensor inv_freq;  // [D/2] float32
};

// A budget to share among rows: those of a layer, or all.
struct RowShares {
  int64_t first_row = 0;  // row = layer x Hkv + head
  int64_t total = 0;  // entries to keep; no less than the sum of `least`, no more than there are
  int64_t sinks = 0;  // positions below are safe,
  int64_t safe_from = 0;                    // so are those from here on,
  std::span<const PositionSpan> pins = {};  // and these:
  int64_t safe = 0;                         // so many tokens in all
  std::span<const int64_t> lengths;         // [rows]
  std::span<const int64_t> least;           // [rows]: what a row keeps in any case
  std::span<int64_t> keep;                  // [rows], to be written: sums to total

  bool is_safe(int32_t position) const {
    return position < sinks || position >= safe_from || is_pinned(pins, position);
  }
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

  // Entries of a lower score go even where the budget has room for them, once they are not safe.
  virtual std::optional<float> threshold() const { return std::nullopt; }

  // Newest entries that are safe unless the user says otherwise; at most half the budget is taken.
  virtual int64_t default_recent() const;

  // Where needs() names queries. The pass's tensors go to view.pass_notes(), whose elements are the
  // scorer's own; note() turns them into notes and scores once the pass stands, observed or not.
  virtual void observe(const SequenceView& view, const PassQueries& pass) const;
  virtual void note(const SequenceView& view) const;
  // Where needs() names rescored: writes the scores of all entries. `sinks` positions are safe.
  virtual void judge(const SequenceView& view, int64_t sinks) const;
  // Whether rows of one group keep different numbers of entries by a plan, and the plan. Follows
  // judge().
  virtual bool plans() const { return false; }
  virtual void plan(const SequenceView& view, const RowShares& shares) const;
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

// What a gate of `kind` said when the entry was written, whatever its age; the newest 128 are safe.
// A threshold as in Scorer::threshold.
// Sources: KVzap arXiv:2601.07891, Fast KVzip arXiv:2601.17668.
std::unique_ptr<Scorer> make_static_gate_scorer(std::string_view kind,
                                                std::optional<float> threshold);

// f above, in double and rounded once. 0 for lookahead 1. `log_beta` above 0 or NaN counts as 0.
float retention_tail(float log_beta, int64_t lookahead);

}  // namespace coppice
