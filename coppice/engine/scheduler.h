// Which sequences run in the next step, and with how many tokens. A pure function: it touches no
// tensor and keeps no state.
//
// Admission is first come, first served: a waiting sequence starts only when the blocks it needs in
// the worst case fit beside the worst case of all that run and what idle sessions hold. So a
// running sequence never lacks a block and never has to be stopped half-way.
//
// A chunk is never cut to fit a batch: its size decides which entries compete, and the result of a
// sequence must not depend on who else runs. Every decoding sequence runs in every step; so does at
// least one prefill chunk, if there is one; more of them while the batch stays within
// max_batch_tokens.
//
// Prompts take turns: one chunk goes to the prompt that came first, the next one to that which has
// the fewest tokens left. So a short prompt does not wait for long ones, and none waits for ever.
//
// What a step reads is what every answer waits between two of its tokens. So a step that decodes
// reads no more of prompts than max_tokens_between tokens cost: whole chunks while they fit, or
// some layers of one larger chunk, which the next steps go on with. The order of the work changes,
// its results do not.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace coppice {

struct SchedulerConfig {
  int64_t max_sequences = 16;  // that run at once
  int64_t max_batch_tokens = 512;
  int64_t max_tokens_between = 16;  // of prompts, in a step that decodes
};

struct SchedulerSequence {
  int64_t id = 0;
  int64_t pending_tokens = 0;  // not read yet: the rest of the prompt, or the token drawn last
  int64_t chunk_tokens = 1;    // most tokens of one pass
  bool decoding = false;       // the prompt has been read
  bool begun = false;          // some layers of the next chunk have run
  int64_t worst_blocks = 0;    // most blocks it will ever hold at once
  int64_t held_blocks = 0;     // a waiting sequence's: of the session it continues
};

struct StepItem {
  int64_t id = 0;
  int64_t tokens = 0;

  bool operator==(const StepItem&) const = default;
};

// Layers of the next chunk of one sequence: as many as cost what `work` tokens cost in all layers.
struct StepSlice {
  int64_t id = 0;
  int64_t tokens = 0;
  int64_t work = 0;  // from 1 to `tokens`: all that are left

  bool operator==(const StepSlice&) const = default;
};

struct StepPlan {
  std::vector<int64_t> admitted;   // waiting sequences that start now, in order
  std::vector<StepItem> items;     // the batch; admitted sequences among them
  std::optional<StepSlice> slice;  // of a sequence that is not among the items
  bool stuck = false;              // nothing runs and the first waiting sequence does not fit
};

// `running` and `waiting` in order of arrival; at most one is begun. `idle_blocks`: held by
// sessions that no request uses, those of `waiting` included. `turn`: of prompts, even for the
// first of them.
StepPlan plan_step(const SchedulerConfig& config, int64_t total_blocks, int64_t idle_blocks,
                   std::span<const SchedulerSequence> running,
                   std::span<const SchedulerSequence> waiting, int64_t turn = 0);

}  // namespace coppice
