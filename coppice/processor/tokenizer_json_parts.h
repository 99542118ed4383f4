// The parts of tokenizer.json that shape text: readers, and the small accessors that they share
// with the reader of the whole file. Internal to processor/.
//
// Every reader throws kInvalidArgument for a part it does not know, by name: a part that is left
// out would give other ids in silence.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/processor/tokenizer_model.h"

namespace coppice::tokenizer_json {

// The member `key`, or null. Also for values that are no objects.
const Json& get(const Json& object, std::string_view key);
// A member of the named type; `missing`, or an empty string, where it is absent or null.
bool flag(const Json& object, std::string_view key, bool missing);
std::string text(const Json& object, std::string_view key);
int64_t integer(const Json& value, std::string_view what);

// The elements of a Sequence (its member `list`), the part itself, or nothing for null.
std::vector<const Json*> parts_of(const Json& part, std::string_view what, std::string_view list);

[[noreturn]] void unsupported(std::string_view what, std::string_view got, std::string_view known);

void read_normalizer(const Json& part, TokenizerModel& model);
void read_pre_tokenizer(const Json& part, TokenizerModel& model);

// How the text of a token becomes what it stands for.
struct DecoderRules {
  bool byte_level = false;
  bool byte_fallback = false;
  std::vector<std::pair<std::string, std::string>> replacements;
};
// REQUIRES: read_pre_tokenizer was called on the model.
DecoderRules read_decoder(const Json& part, TokenizerModel& model);
// An entry of the vocabulary.
TokenEntry entry_of(const std::string& token, const DecoderRules& rules);

}  // namespace coppice::tokenizer_json
