// Reading numbers out of a saved state, which may be damaged or of another run.
#pragma once

#include <cstdint>

#include "coppice/core/error.h"
#include "coppice/core/json.h"

namespace coppice {

// A whole number >= 0. Throws kInvalidArgument when it is not there or is something else.
inline int64_t count_field(const Json& json, const char* key) {
  const auto at = json.is_object() ? json.find(key) : json.end();
  if (at == json.end() || !at->is_number_integer() || at->get<int64_t>() < 0)
    fail_argument("training state: expected a count \"{}\"", key);
  return at->get<int64_t>();
}

}  // namespace coppice
