// Counters in the text format that Prometheus reads.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "coppice/server/engine_loop.h"

namespace coppice {

// `replies`: how many were sent, by HTTP status.
std::string metrics_text(const LoopStats& stats, const std::map<int, int64_t>& replies);

}  // namespace coppice
