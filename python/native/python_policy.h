// Eviction policies whose score is a Python function: a row of the table of policies made at run
// time. Selection, budgets, scopes, protected tokens and the cache are those of every policy.
//
// The function is called with the GIL held, from inside Engine::step, once for each row of the
// cache before every choice; what it raises ends the step's request and reaches the caller of the
// engine as it was raised.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "coppice/eviction/policy.h"

namespace coppice::python {

struct PolicyNeeds {
  bool keys = false;
  bool values = false;
  bool queries = false;    // the newest `window` ones
  bool attention = false;  // what those pay
  bool log_beta = false;   // of a retention gate
};

struct PolicyTraits {
  std::string name;
  std::string scope = "head";  // or "layer", "global"
  int64_t sinks = 0;
  int64_t recent = 0;  // as Scorer::default_recent
  int64_t floor = 0;
  int64_t window = 32;  // queries seen
  PolicyNeeds needs;
};

// score(layer, head, seen, arrays) -> [L] numbers, higher is kept. `seen`: tokens read so far.
// arrays holds, as far as they are asked for, in order of position:
//   positions [L] int64     keys, values [L, D]      log_beta [L]
//   queries [w, G, D]       rotated and scaled, of the G heads that share the row, oldest first
//   attention [w, G, L]     softmax over the row's keys that are not newer than the query
// float32 where nothing else is said; all are copies. Throws kInvalidArgument for a name that a
// built-in policy has, and for traits out of range. REQUIRES: the GIL.
std::shared_ptr<const PolicyInfo> make_python_policy(const PolicyTraits& traits,
                                                     const pybind11::object& score);

}  // namespace coppice::python
