// Everything that a training run needs to go on as if it had never stopped, in one safetensors
// file.
//
// Tensors "values", "first_moment", "second_moment" [P] float32; metadata: "format" =
// "coppice-training", the optimizer's layout, and JSON texts of the configuration, the place in the
// data and the counters. No random state is kept: every draw is a function of the seed and a
// counter. The file appears whole or not at all: a run that is killed while it writes keeps the one
// before.
#pragma once

#include <cstdint>
#include <string>

#include "coppice/core/json.h"
#include "coppice/train/optimizer.h"

namespace coppice {

struct TrainingState {
  Json config;           // what determines the run: see Trainer
  Json data;             // Packer::state()
  int64_t step = 0;      // steps done
  int64_t tokens = 0;    // tokens seen
  double seconds = 0.0;  // of all sessions
};

// Throws kInvalidArgument when it cannot be written; what stood at `path` is then untouched.
void save_state(const std::string& path, const TrainingState& state, AdamW& optimizer);

// Fills `optimizer`. Throws kNotFound or kInvalidArgument; the optimizer is then untouched.
TrainingState load_state(const std::string& path, AdamW& optimizer);

// Removes drafts that killed runs have left beside `path`.
void remove_drafts(const std::string& path);

// Throws kInvalidArgument naming the first option in which two configurations differ.
void check_same_run(const Json& saved, const Json& now, const std::string& path);

}  // namespace coppice
