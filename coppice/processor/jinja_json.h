// JSON to template values.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "coppice/processor/jinja_runtime.h"

namespace coppice::jinja {

// Keeps the order of keys, which templates print.
using OrderedJson = nlohmann::ordered_json;

// `plain`: all strings, keys included, are marked as user data. Integers above 2^63 - 1 become
// floats. `what` names the value in messages. Throws kInvalidArgument for strings that are not
// UTF-8 and for nesting deeper than 190 levels.
Value from_json(Runtime& runtime, const OrderedJson& json, bool plain, std::string_view what,
                int depth = 0);

}  // namespace coppice::jinja
