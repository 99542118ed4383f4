// What a request comes to before it is queued: everything it leaves open filled in, everything that
// the engine would refuse refused.
#pragma once

#include <cstdint>

#include "coppice/engine/engine.h"

namespace coppice {

struct RequestPlan {
  int64_t prompt_tokens = 0;
  int64_t total_tokens = 0;  // most that the cache sees: the last token drawn is not read
  int64_t worst_blocks = 0;  // most blocks of the pool it will hold at once
};

// Fills in request.eviction (nothing in it stays unset) and request.sampling.max_tokens (absent: as
// many as positions and the pool allow). The request has no session. Throws as Engine::submit, and
// changes nothing in the engine.
RequestPlan plan_request(const Engine& engine, Request& request);

// Most blocks that the request would hold at once under `eviction`, for a total as in its plan.
int64_t worst_blocks_under(const Engine& engine, const Request& request,
                           const EvictionConfig& eviction, int64_t total_tokens);

}  // namespace coppice
