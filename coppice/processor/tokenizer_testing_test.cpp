#include "coppice/processor/tokenizer_testing.h"

#include <fmt/format.h>

#include "coppice/processor/tokenizer_model.h"

namespace coppice::testing {
namespace {

std::string token_of_merge(const std::string& merge) {
  const size_t blank = merge.find(' ', 1);
  return merge.substr(0, blank) + merge.substr(blank + 1);
}

std::string merge_in_alphabet(const std::string& merge) {
  const size_t blank = merge.find(' ', 1);
  return in_byte_alphabet(merge.substr(0, blank)) + " " + in_byte_alphabet(merge.substr(blank + 1));
}

Json split_json(KnownSplit split) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", std::string(split_pattern(split))}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json byte_level_json(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", use_regex}};
}

Json pre_tokenizer_json(const std::string& pre) {
  if (pre == "gpt-2") return byte_level_json(true);
  Json steps = Json::array();
  if (pre == "smollm") {
    steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    steps.push_back(byte_level_json(true));
  } else {
    steps.push_back(split_json(pre == "qwen2" ? KnownSplit::kQwen2 : KnownSplit::kLlama3));
    steps.push_back(byte_level_json(false));
  }
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

Json added_json(const std::string& content, int64_t id, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

std::string byte_token(int byte) { return fmt::format("<0x{:02X}>", byte); }

}  // namespace

std::string byte_character(uint8_t byte) {
  static const std::vector<std::string> characters = [] {
    std::vector<std::string> of(256);
    for (uint32_t c = 0x21; c < 0x200; ++c) {
      std::string text;
      append_utf8(text, c);
      const std::string bytes = bytes_of_byte_level(text);
      if (bytes.size() == 1) of[static_cast<uint8_t>(bytes[0])] = text;
    }
    return of;
  }();
  return characters[byte];
}

std::string in_byte_alphabet(std::string_view text) {
  std::string out;
  for (const char c : text) out += byte_character(static_cast<uint8_t>(c));
  return out;
}

GgufTokenizerFields TinyBpe::gguf() const {
  GgufTokenizerFields fields;
  fields.model = "gpt2";
  fields.pre = pre;
  const auto add = [&](std::string text, int32_t type) {
    fields.tokens.push_back(std::move(text));
    fields.types.push_back(type);
  };
  for (int byte = 0; byte < 256; ++byte) add(byte_character(static_cast<uint8_t>(byte)), 1);
  for (const std::string& merge : merges) {
    add(in_byte_alphabet(token_of_merge(merge)), 1);
    fields.merges.push_back(merge_in_alphabet(merge));
  }
  if (merges.empty()) {
    add(in_byte_alphabet("qq"), 1);
    fields.merges.push_back("q q");
  }
  for (const std::string& token : control) add(token, 3);
  for (const std::string& token : added) add(token, 4);
  for (size_t id = 0; id < fields.tokens.size(); ++id) {
    if (fields.tokens[id] == "<bos>") fields.bos_id = static_cast<int64_t>(id);
    if (fields.tokens[id] == "<|im_end|>") fields.eos_id = static_cast<int64_t>(id);
  }
  fields.add_bos = add_bos;
  return fields;
}

Json TinyBpe::json() const {
  const GgufTokenizerFields fields = gguf();
  Json vocabulary = Json::object();
  Json added_tokens = Json::array();
  for (size_t id = 0; id < fields.tokens.size(); ++id) {
    if (fields.types[id] == 1) {
      vocabulary[fields.tokens[id]] = id;
    } else {
      added_tokens.push_back(
          added_json(fields.tokens[id], static_cast<int64_t>(id), fields.types[id] == 3));
    }
  }
  Json result = {{"added_tokens", added_tokens},
                 {"normalizer", pre == "qwen2" ? Json({{"type", "NFC"}}) : Json()},
                 {"pre_tokenizer", pre_tokenizer_json(pre)},
                 {"post_processor", Json()},
                 {"decoder", byte_level_json(true)},
                 {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", fields.merges}}}};
  if (pre == "llama-bpe") result["model"]["ignore_merges"] = true;
  return result;
}

GgufTokenizerFields tiny_sentencepiece(const std::vector<std::string>& pieces) {
  GgufTokenizerFields fields;
  fields.model = "llama";
  const auto add = [&](std::string text, int32_t type) {
    fields.scores.push_back(-static_cast<float>(fields.tokens.size()));
    fields.tokens.push_back(std::move(text));
    fields.types.push_back(type);
  };
  add("<unk>", 2);
  add("<s>", 3);
  add("</s>", 3);
  for (int byte = 0; byte < 256; ++byte) add(byte_token(byte), 6);
  for (const std::string& piece : pieces) add(piece, 1);
  fields.bos_id = 1;
  fields.eos_id = 2;
  fields.unk_id = 0;
  return fields;
}

Json tiny_sentencepiece_json(const std::vector<std::string>& pieces) {
  const GgufTokenizerFields fields = tiny_sentencepiece(pieces);
  Json vocabulary = Json::object();
  for (size_t id = 0; id < fields.tokens.size(); ++id) vocabulary[fields.tokens[id]] = id;
  Json merges = Json::array();
  for (const std::string& piece : pieces) {
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      const std::string left = piece.substr(0, cut);
      const std::string right = piece.substr(cut);
      if (vocabulary.contains(left) && vocabulary.contains(right)) merges.push_back({left, right});
    }
  }
  const std::string mark(kBlankMark);
  const Json to_mark = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}};
  const Json to_blank = {{"type", "Replace"}, {"pattern", {{"String", mark}}}, {"content", " "}};
  const Json prepend = {{"type", "Prepend"}, {"prepend", mark}};
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  return {{"added_tokens",
           {added_json("<unk>", 0, true), added_json("<s>", 1, true), added_json("</s>", 2, true)}},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", {prepend, to_mark}}}},
          {"pre_tokenizer", Json()},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders", {to_blank, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}, strip}}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocabulary},
            {"merges", merges},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true}}}};
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                     const DecodeOptions& options) {
  StreamDecoder decoder(tokenizer, options);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.flush();
}

std::string repeat(std::string_view text, size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

std::string nasty_character(uint64_t random) {
  static const std::vector<uint32_t> often = {
      ' ',    ' ',    '\n',  '\r',   '\t', '\'',   's',    'S',    't',    'r',    'e',    'l',
      'L',    'd',    '1',   '2',    'A',  '.',    '-',    0x17F,  0x301,  0xA0,   0x3000, 0x85,
      0x2028, 0x4E2D, 0x663, 0x2160, 0xBD, 0x200D, 0xFEFF, 0xE000, 0x180E, 0x1F600};
  const uint64_t pick = random >> 8;
  uint32_t c = often[pick % often.size()];
  if (random % 4 == 0) c = static_cast<uint32_t>(pick % 0x3000);
  if (random % 32 == 1) c = static_cast<uint32_t>(pick % 0x110000);
  if (c >= 0xD800 && c < 0xE000) c = 'x';
  std::string text;
  append_utf8(text, c);
  return text;
}

}  // namespace coppice::testing
