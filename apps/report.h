// Numbers for people: what a request saw, kept and cost.
#pragma once

#include <cstdint>
#include <string>

#include "coppice/cache/cache_config.h"
#include "coppice/engine/request.h"

namespace coppice {

std::string human_bytes(double bytes);    // "6.1 MiB"
std::string human_count(int64_t number);  // "23,040"

// One line: tokens seen, entries kept and evicted, bytes held and bound, what the full cache would
// hold, speed.
std::string usage_line(const RequestOutput& output, const CacheConfig& cache);

// The end of an answer: one JSON object on stdout, or a line break there (the text has been
// streamed) and usage_line on stderr.
void print_answer(RequestOutput output, double load_seconds, const CacheConfig& cache, bool json);

}  // namespace coppice
