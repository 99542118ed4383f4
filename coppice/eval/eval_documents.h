// Documents of real text that evaluations read, and which of them at which lengths.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/eviction/policy.h"

namespace coppice {

struct EvalDocument {
  int64_t number = 0;  // in its file, from 0
  std::string id;      // for people, as is the source
  std::string source;
  std::vector<int32_t> tokens;
};

// The first `context` tokens of a document.
struct DocumentPart {
  std::size_t document = 0;
  int64_t context = 0;
};

// `wanted` of `have` places, evenly spread and in order. REQUIRES: wanted <= have.
std::vector<std::size_t> spread_evenly(int64_t have, int64_t wanted);

// Of each context `wanted` documents, spread evenly over those long enough; 0: all of them. The
// contexts, sorted and each once, take turns, so that a run that is ended early has something of
// each. task: in messages. Throws kInvalidArgument for a context under 4 or one that no document is
// long enough for; fewer documents than wanted are said on stderr.
std::vector<DocumentPart> choose_parts(std::string_view task,
                                       const std::vector<EvalDocument>& documents,
                                       std::vector<int64_t>& contexts, int64_t wanted);

// An array of what `summary_of` gives for each context and setting, in this order; null is left
// out.
Json summarise_by_context(
    const std::vector<int64_t>& contexts, const std::vector<EvictionConfig>& settings,
    const std::function<Json(int64_t context, const EvictionConfig& eviction)>& summary_of);

}  // namespace coppice
