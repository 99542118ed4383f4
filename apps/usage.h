// Which faults are the user's flags: they exit with 2, everything else with 1.
#pragma once

#include <utility>

#include "coppice/core/error.h"

namespace coppice {

class UsageError : public Error {
 public:
  explicit UsageError(const Error& cause) : Error(cause.code(), cause.what()) {}
};

// Runs `work`, whose refusals (a bad value, an unknown name) come from flags rather than from
// files.
template <typename Work>
auto from_flags(Work work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kNotFound)
      throw UsageError(error);
    throw;
  }
}

}  // namespace coppice
