// Checks a chat request and brings it into the form that a template reads.
#pragma once

#include "coppice/processor/chat_template.h"

namespace coppice {

// What one template reads; found by trial when it is compiled.
struct TemplateAbilities {
  bool content_parts = true;       // content may be a list of parts
  bool arguments_as_text = false;  // tool-call arguments are JSON text, not an object
};

// The messages, checked and normalised. Throws kInvalidArgument naming the place.
OrderedJson prepare_messages(const OrderedJson& messages, const TemplateAbilities& abilities);
// The tools, checked; an empty list becomes null.
OrderedJson prepare_tools(const OrderedJson& tools);
// The further variables, checked: an object without names that the request sets itself; a switch
// `enable_thinking` among them must be a boolean and agree with the request's own.
OrderedJson prepare_extra(const ChatRequest& request);
// Whether templates' own words may be chosen by this role.
bool known_role(std::string_view role);

}  // namespace coppice
