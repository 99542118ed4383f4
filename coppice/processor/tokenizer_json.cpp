// Reads tokenizer.json, the file of the Hugging Face "tokenizers" library.

#include <algorithm>
#include <charconv>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/processor/tokenizer_json_parts.h"
#include "coppice/processor/tokenizer_model.h"

namespace coppice {

using namespace tokenizer_json;

namespace {

const Json kNull;

void check_bpe(const Json& part) {
  if (!part.is_object()) fail_argument("tokenizer.json: \"model\" is missing; expected an object");
  const std::string type = text(part, "type");
  if (type != "BPE" && !(type.empty() && part.contains("merges"))) {
    unsupported("model", type, "BPE");
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const std::string value = text(part, key); !value.empty()) {
      unsupported(std::string("model with ").append(key), value, "none");
    }
  }
  const Json& dropout = get(part, "dropout");
  if (!dropout.is_null() && dropout != Json(0.0)) {
    unsupported("model with dropout", dump_json(dropout), "none");
  }
}

void read_vocabulary(const Json& part, const DecoderRules& rules, TokenizerModel& model) {
  const Json& vocabulary = get(part, "vocab");
  if (!vocabulary.is_object() || vocabulary.empty()) {
    fail_argument("tokenizer.json: \"vocab\" is missing or empty; expected tokens with their ids");
  }
  model.by_text.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) {
    model.add_token(integer(id, "an id in \"vocab\""), entry_of(token, rules));
  }
  model.byte_fallback = flag(part, "byte_fallback", false);
  model.fuse_unknown = flag(part, "fuse_unk", false);
  if (const std::string unknown = text(part, "unk_token"); !unknown.empty()) {
    const auto found = model.by_text.find(unknown);
    if (found == model.by_text.end()) {
      fail_argument("tokenizer.json: unk_token \"{}\" is not in the vocabulary", unknown);
    }
    model.unk = model.unknown_symbol = found->second;
  }
}

void read_added(const Json& token, const Json& id, TokenizerModel& model) {
  if (!token.is_object()) {
    fail_argument("tokenizer.json: an added token is {}; expected an object", dump_json(token));
  }
  AddedToken added;
  added.content = text(token, "content");
  const int64_t at = integer(id, "the id of an added token");
  added.special = flag(token, "special", false);
  added.single_word = flag(token, "single_word", false);
  added.lstrip = flag(token, "lstrip", false);
  added.rstrip = flag(token, "rstrip", false);
  added.normalized = flag(token, "normalized", !added.special);
  const bool in_vocabulary =
      model.has(at) && model.tokens[static_cast<size_t>(at)].text == added.content;
  if (!in_vocabulary || added.special) {
    const TokenKind kind = added.special ? TokenKind::kControl : TokenKind::kAdded;
    model.add_token(at, {added.content, added.content, kind});
  }
  added.id = static_cast<int32_t>(at);
  model.add_added(added);
}

void read_added_tokens(const Json& root, const Json& config, TokenizerModel& model) {
  std::vector<int64_t> seen;
  if (const Json& list = get(root, "added_tokens"); list.is_array()) {
    for (const Json& token : list) {
      read_added(token, token.is_object() ? get(token, "id") : kNull, model);
      seen.push_back(get(token, "id").get<int64_t>());
    }
  }
  std::sort(seen.begin(), seen.end());
  // Tokens that only tokenizer_config.json knows.
  const Json& more = get(config, "added_tokens_decoder");
  if (!more.is_object()) return;
  for (const auto& [key, token] : more.items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      fail_argument(
          "tokenizer_config.json: added_tokens_decoder has the key \"{}\"; expected an id", key);
    }
    if (!std::binary_search(seen.begin(), seen.end(), id)) read_added(token, Json(id), model);
  }
}

void read_merges(const Json& part, TokenizerModel& model) {
  const Json& merges = get(part, "merges");
  if (!merges.is_array()) fail_argument("tokenizer.json: \"merges\" is missing; expected a list");
  model.merges = MergeTable(merges.size());
  uint32_t rank = 0;
  for (const Json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      model.add_merge(merge[0].get_ref<const std::string&>(),
                      merge[1].get_ref<const std::string&>(), rank++);
      continue;
    }
    std::string_view line;
    if (merge.is_string()) line = merge.get_ref<const std::string&>();
    const size_t blank = line.find(' ', 1);
    if (blank == std::string_view::npos || blank + 1 == line.size()) {
      fail_argument("tokenizer.json: merge {} is {}; expected two tokens", rank, dump_json(merge));
    }
    model.add_merge(line.substr(0, blank), line.substr(blank + 1), rank++);
  }
}

void read_post_processor(const Json& part, TokenizerModel& model) {
  for (const Json* step : parts_of(part, "post_processor", "processors")) {
    const std::string type = text(*step, "type");
    if (type == "ByteLevel") continue;
    const Json& single = get(*step, "single");
    if (type != "TemplateProcessing" || !single.is_array()) {
      unsupported("post_processor", type, "ByteLevel or TemplateProcessing");
    }
    bool before = true;
    for (const Json& item : single) {
      if (item.is_object() && item.contains("Sequence")) {
        before = false;
        continue;
      }
      const Json& special = item.is_object() ? get(item, "SpecialToken") : kNull;
      const auto found =
          special.is_object() ? model.by_text.find(text(special, "id")) : model.by_text.end();
      if (found == model.by_text.end()) {
        fail_argument("tokenizer.json: the post_processor adds {}, which is no token",
                      dump_json(item));
      }
      (before ? model.prefix : model.suffix).push_back(found->second);
    }
  }
}

// A token that tokenizer_config.json names, as a string or as an object with its content.
int32_t named_token(const Json& config, std::string_view key, const TokenizerModel& model) {
  const Json& value = get(config, key);
  std::string name;
  if (value.is_string()) name = value.get<std::string>();
  if (value.is_object()) name = text(value, "content");
  const auto found = model.by_text.find(name);
  return name.empty() || found == model.by_text.end() ? -1 : found->second;
}

void read_config(const Json& config, TokenizerModel& model) {
  model.bos = named_token(config, "bos_token", model);
  model.eos = named_token(config, "eos_token", model);
  model.pad = named_token(config, "pad_token", model);
  if (const int32_t unk = named_token(config, "unk_token", model); unk >= 0) model.unk = unk;
  if (model.bos < 0 && !model.prefix.empty()) model.bos = model.prefix.back();
  if (model.prefix.empty() && model.bos >= 0 && flag(config, "add_bos_token", false)) {
    model.prefix = {model.bos};
  }
  if (model.suffix.empty() && model.eos >= 0 && flag(config, "add_eos_token", false)) {
    model.suffix = {model.eos};
  }
}

void read_all(const Json& root, const Json& config, TokenizerModel& model) {
  const Json& bpe = get(root, "model");
  check_bpe(bpe);
  read_normalizer(get(root, "normalizer"), model);
  read_pre_tokenizer(get(root, "pre_tokenizer"), model);
  const DecoderRules rules = read_decoder(get(root, "decoder"), model);
  read_vocabulary(bpe, rules, model);
  read_added_tokens(root, config, model);
  read_merges(bpe, model);
  if (flag(bpe, "ignore_merges", false)) {
    for (size_t id = 0; id < model.tokens.size(); ++id) {
      const TokenEntry& token = model.tokens[id];
      if (token.kind != TokenKind::kNormal) continue;
      model.whole_words.try_emplace(model.byte_level ? token.bytes : token.text,
                                    static_cast<int32_t>(id));
    }
  }
  read_post_processor(get(root, "post_processor"), model);
  read_config(config, model);
  model.finish();
}

}  // namespace

Tokenizer Tokenizer::from_tokenizer_json(std::string_view json, std::string_view config_json) {
  const Json root = parse_json(json, "tokenizer.json");
  const Json config =
      config_json.empty() ? Json::object() : parse_json(config_json, "tokenizer_config.json");
  if (!root.is_object()) fail_argument("tokenizer.json: expected an object");
  if (!config.is_object()) fail_argument("tokenizer_config.json: expected an object");
  auto model = std::make_unique<TokenizerModel>();
  try {
    read_all(root, config, *model);
  } catch (const nlohmann::json::exception& error) {
    fail_argument("tokenizer.json: {}", error.what());
  }
  return Tokenizer(std::move(model));
}

}  // namespace coppice
