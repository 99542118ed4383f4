// A policy with settings of its own, as one word of a grid: "dbtrimkv:recent=32",
// "snapkv:kernel=5,window=16".
//
// Besides the policy's own options these set what all policies have: sinks, recent, floor,
// lookahead and scope (head, layer or global).
#pragma once

#include <string>
#include <string_view>

#include "coppice/eviction/policy.h"

namespace coppice {

// `base` with the policy and what the word sets. Throws kInvalidArgument for a word that is not of
// this form, a name that stands twice or a value that cannot be; the policy's own options are
// checked by EvictionPolicy.
EvictionConfig parse_policy_choice(std::string_view word, const EvictionConfig& base);

// The word for a configuration, whatever its budget: equal for equal settings, options in
// alphabetical order, what is unset or as in EvictionConfig left out.
std::string policy_choice_name(const EvictionConfig& config);

std::string_view scope_name(Scope scope);

}  // namespace coppice
