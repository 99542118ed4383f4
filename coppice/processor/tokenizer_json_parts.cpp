#include "coppice/processor/tokenizer_json_parts.h"

#include <charconv>

#include "coppice/core/error.h"

namespace coppice::tokenizer_json {
namespace {

using PrefixSpace = TokenizerModel::PrefixSpace;

const Json kNull;

void read_split(const Json& part, TokenizerModel& model) {
  const std::string behavior = text(part, "behavior");
  const Json& pattern = get(part, "pattern");
  const std::string regex = pattern.is_object() ? text(pattern, "Regex") : std::string();
  if (regex.empty()) unsupported("pre_tokenizer Split with pattern", dump_json(pattern), "a Regex");
  if (behavior != "Isolated")
    unsupported("pre_tokenizer Split with behavior", behavior, "Isolated");
  if (flag(part, "invert", false)) unsupported("pre_tokenizer Split with invert", "true", "false");
  model.pre_tokenizer.add_pattern(regex);
}

// Older files say add_prefix_space instead of prepend_scheme.
std::string prepend_scheme(const Json& part) {
  const std::string scheme = text(part, "prepend_scheme");
  if (!scheme.empty()) return scheme;
  return flag(part, "add_prefix_space", true) ? "always" : "never";
}

void read_metaspace(const Json& part, TokenizerModel& model) {
  const std::string mark = text(part, "replacement");
  if (mark != kBlankMark) unsupported("pre_tokenizer Metaspace with replacement", mark, kBlankMark);
  const std::string scheme = prepend_scheme(part);
  if (scheme == "always") {
    model.prefix_space = PrefixSpace::kMarkIfMissing;
  } else if (scheme == "first") {
    model.prefix_space = PrefixSpace::kMarkFirstIfMissing;
  } else if (scheme != "never") {
    unsupported("pre_tokenizer Metaspace with prepend_scheme", scheme, "always, first or never");
  }
  model.mark_blanks = true;
  model.split_marks = flag(part, "split", true);
}

std::string replaced(std::string_view in, const std::string& from, const std::string& to) {
  std::string out;
  for (size_t at = 0; at < in.size();) {
    if (in.substr(at).starts_with(from)) {
      out += to;
      at += from.size();
    } else {
      out += in[at++];
    }
  }
  return out;
}

}  // namespace

const Json& get(const Json& object, std::string_view key) {
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

bool flag(const Json& object, std::string_view key, bool missing) {
  const Json& value = get(object, key);
  if (value.is_null()) return missing;
  if (!value.is_boolean()) {
    fail_argument("tokenizer.json: \"{}\" is {}; expected true or false", key, dump_json(value));
  }
  return value.get<bool>();
}

std::string text(const Json& object, std::string_view key) {
  const Json& value = get(object, key);
  if (value.is_null()) return {};
  if (!value.is_string()) {
    fail_argument("tokenizer.json: \"{}\" is {}; expected a string", key, dump_json(value));
  }
  return value.get<std::string>();
}

int64_t integer(const Json& value, std::string_view what) {
  if (!value.is_number_integer()) {
    fail_argument("tokenizer.json: {} is {}; expected a whole number", what, dump_json(value));
  }
  return value.get<int64_t>();
}

// The elements of a Sequence, or the part itself.
std::vector<const Json*> parts_of(const Json& part, std::string_view what, std::string_view list) {
  std::vector<const Json*> parts;
  if (part.is_null()) return parts;
  if (!part.is_object()) {
    fail_argument("tokenizer.json: the {} is {}; expected an object", what, dump_json(part));
  }
  if (text(part, "type") != "Sequence") return {&part};
  const Json& elements = get(part, list);
  if (!elements.is_array()) {
    fail_argument("tokenizer.json: the {}'s \"{}\" is missing; expected a list", what, list);
  }
  for (const Json& element : elements) {
    if (!element.is_object() || text(element, "type") == "Sequence") {
      fail_argument("tokenizer.json: the {} nests a sequence in a sequence; expected plain parts",
                    what);
    }
    parts.push_back(&element);
  }
  return parts;
}

[[noreturn]] void unsupported(std::string_view what, std::string_view got, std::string_view known) {
  fail_argument("tokenizer.json: {} \"{}\" is not supported; expected {}", what, got, known);
}

void read_normalizer(const Json& part, TokenizerModel& model) {
  for (const Json* step : parts_of(part, "normalizer", "normalizers")) {
    const std::string type = text(*step, "type");
    if (type == "NFC") {
      model.normalizer.add_nfc();
    } else if (type == "Prepend") {
      model.normalizer.add_prepend(text(*step, "prepend"));
    } else if (type == "Replace") {
      const Json& pattern = get(*step, "pattern");
      const std::string from = pattern.is_object() ? text(pattern, "String") : std::string();
      if (from.empty())
        unsupported("normalizer Replace with pattern", dump_json(pattern), "a String");
      model.normalizer.add_replace(from, text(*step, "content"));
    } else {
      unsupported("normalizer", type, "NFC, Prepend, Replace or a Sequence of them");
    }
  }
}

void read_pre_tokenizer(const Json& part, TokenizerModel& model) {
  const auto steps = parts_of(part, "pre_tokenizer", "pretokenizers");
  model.byte_level = false;
  for (const Json* step : steps) {
    const std::string type = text(*step, "type");
    if (model.byte_level) unsupported("pre_tokenizer after ByteLevel", type, "ByteLevel last");
    if (type == "Split") {
      read_split(*step, model);
    } else if (type == "Digits") {
      if (!flag(*step, "individual_digits", false)) {
        unsupported("pre_tokenizer Digits with individual_digits", "false", "true");
      }
      model.pre_tokenizer.add(KnownSplit::kDigits);
    } else if (type == "ByteLevel") {
      model.byte_level = true;
      if (flag(*step, "use_regex", true)) model.pre_tokenizer.add(KnownSplit::kGpt2);
      if (flag(*step, "add_prefix_space", true)) {
        if (steps.size() > 1) {
          unsupported("pre_tokenizer ByteLevel with add_prefix_space in a sequence", "true",
                      "false");
        }
        model.prefix_space = PrefixSpace::kIfMissing;
      }
    } else if (type == "Metaspace" && steps.size() == 1) {
      read_metaspace(*step, model);
    } else {
      unsupported("pre_tokenizer", type,
                  "Split, Digits, ByteLevel, a Sequence of them, or Metaspace alone");
    }
  }
}

DecoderRules read_decoder(const Json& part, TokenizerModel& model) {
  DecoderRules rules;
  for (const Json* step : parts_of(part, "decoder", "decoders")) {
    const std::string type = text(*step, "type");
    if (type == "ByteLevel") {
      rules.byte_level = true;
    } else if (type == "ByteFallback") {
      rules.byte_fallback = true;
    } else if (type == "Replace") {
      const Json& pattern = get(*step, "pattern");
      const std::string from = pattern.is_object() ? text(pattern, "String") : std::string();
      if (from.empty()) unsupported("decoder Replace with pattern", dump_json(pattern), "a String");
      rules.replacements.emplace_back(from, text(*step, "content"));
    } else if (type == "Metaspace") {
      rules.replacements.emplace_back(text(*step, "replacement"), " ");
      if (rules.replacements.back().first.empty()) {
        unsupported("decoder Metaspace with replacement", "", kBlankMark);
      }
      model.strip_leading_space = prepend_scheme(*step) != "never";
    } else if (type == "Strip") {
      const bool one_blank = text(*step, "content") == " " && get(*step, "start") == Json(1) &&
                             get(*step, "stop") == Json(0);
      if (!one_blank) unsupported("decoder Strip", dump_json(*step), "one blank at the start");
      model.strip_leading_space = true;
    } else if (type != "Fuse") {
      unsupported("decoder", type,
                  "ByteLevel, Metaspace, or Replace, ByteFallback, Fuse and Strip");
    }
  }
  if (rules.byte_level != model.byte_level ||
      (!rules.byte_level && rules.replacements.empty() && !rules.byte_fallback)) {
    fail_argument(
        "tokenizer.json: the decoder does not fit the pre_tokenizer: expected ByteLevel "
        "for both, or Metaspace or Replace for a SentencePiece-type vocabulary");
  }
  return rules;
}

TokenEntry entry_of(const std::string& token, const DecoderRules& rules) {
  TokenEntry entry{token, token, TokenKind::kNormal};
  if (rules.byte_level) {
    entry.bytes = bytes_of_byte_level(token);
    return entry;
  }
  unsigned byte = 0;
  if (rules.byte_fallback && token.size() == 6 && token.starts_with("<0x") && token[5] == '>' &&
      std::from_chars(&token[3], &token[5], byte, 16).ptr == &token[5]) {
    entry.kind = TokenKind::kByte;
    entry.bytes = std::string(1, static_cast<char>(byte));
    return entry;
  }
  for (const auto& [from, to] : rules.replacements) entry.bytes = replaced(entry.bytes, from, to);
  return entry;
}

}  // namespace coppice::tokenizer_json
