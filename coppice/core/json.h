// JSON, for every folder: nlohmann-json, with a parser that is safe on hostile text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace coppice {

using Json = nlohmann::json;

struct JsonLimits {
  int64_t max_depth = 128;             // of nested arrays and objects
  bool reject_duplicate_keys = false;  // nlohmann-json alone keeps the last one in silence
};

// Parses `text`, which must be valid UTF-8. `what` names the text in messages ("config.json").
// Throws kInvalidArgument on malformed text, too deep nesting, or a duplicate key where refused.
// The depth is checked while parsing, so a deep text costs no stack.
Json parse_json(std::string_view text, std::string_view what, const JsonLimits& limits = {});

// Compact text. Invalid UTF-8 inside strings becomes U+FFFD: never throws on what a model emitted.
std::string dump_json(const Json& value, int indent = -1);

}  // namespace coppice
