// What the two file formats may hold: optional parts, and everything that is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "coppice/core/error.h"
#include "coppice/processor/tokenizer.h"
#include "coppice/processor/tokenizer_testing.h"

namespace coppice {
namespace {

using testing::tiny_sentencepiece;
using testing::TinyBpe;
using Ids = std::vector<int32_t>;
using Pieces = std::vector<std::string>;

const std::string kMark = "\u2581";

Pieces texts_of(const Tokenizer& t, std::string_view text) {
  Pieces pieces;
  for (const int32_t id : t.encode(text)) pieces.push_back(t.token_text(id));
  return pieces;
}

std::string refusal(const std::function<void()>& load) {
  try {
    load();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(TokenizerGguf, LyingFieldsAreRefused) {
  using Change = std::function<void(GgufTokenizerFields&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"tokenizer.ggml.model", [](auto& f) { f.model = "bert"; }},
      {"tokenizer.ggml.tokens", [](auto& f) { f.tokens.clear(); }},
      {"tokenizer.ggml.token_type", [](auto& f) { f.types.pop_back(); }},
      {"tokenizer.ggml.token_type", [](auto& f) { f.types[5] = 7; }},
      {"tokenizer.ggml.merges", [](auto& f) { f.merges.clear(); }},
      {"tokenizer.ggml.merges", [](auto& f) { f.merges[0] = "ab"; }},
      {"tokenizer.ggml.merges", [](auto& f) { f.merges[0] = "a "; }},
      {"merge 0", [](auto& f) { f.merges[0] = "a \u00e9\u00e9"; }},
      {"tokenizer.ggml.bos_token_id", [](auto& f) { f.bos_id = 1 << 20; }},
      {"tokenizer.ggml.eos_token_id", [](auto& f) { f.eos_id = -1; }},
      {"tokenizer.ggml.eot_token_id", [](auto& f) { f.eot_id = int64_t{1} << 40; }},
  };
  for (const auto& [message, change] : changes) {
    GgufTokenizerFields fields = TinyBpe{.merges = {"a b"}}.gguf();
    change(fields);
    EXPECT_NE(refusal([&] { Tokenizer::from_gguf(fields); }).find(message), std::string::npos)
        << message << ": " << refusal([&] { Tokenizer::from_gguf(fields); });
  }
}

TEST(TokenizerGguf, LyingSentencePieceFieldsAreRefused) {
  using Change = std::function<void(GgufTokenizerFields&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"scores", [](auto& f) { f.scores.pop_back(); }},
      {"scores", [](auto& f) { f.scores.back() = std::nanf(""); }},
      {"token_type", [](auto& f) { f.types.clear(); }},
      {"byte token", [](auto& f) { f.tokens[7] = "<0xG0>"; }},
      {"at most 256", [](auto& f) { f.tokens.back() = std::string(300, 'a'); }},
  };
  for (const auto& [message, change] : changes) {
    GgufTokenizerFields fields = tiny_sentencepiece({kMark, "a", "aa"});
    change(fields);
    EXPECT_NE(refusal([&] { Tokenizer::from_gguf(fields); }).find(message), std::string::npos)
        << message;
  }
}

TEST(TokenizerGguf, DefaultsOfTheFamilies) {
  const auto adds_bos = [](GgufTokenizerFields fields) {
    fields.add_bos.reset();
    return Tokenizer::from_gguf(fields).adds_bos();
  };
  EXPECT_TRUE(adds_bos(TinyBpe{.pre = "llama-bpe"}.gguf()));
  EXPECT_FALSE(adds_bos(TinyBpe{.pre = "qwen2"}.gguf()));
  EXPECT_FALSE(adds_bos(TinyBpe{.pre = "gpt-2"}.gguf()));
  EXPECT_TRUE(adds_bos(tiny_sentencepiece({kMark, "a"})));
  GgufTokenizerFields no_prefix = tiny_sentencepiece({kMark, "a"});
  no_prefix.add_space_prefix = false;
  EXPECT_EQ(texts_of(Tokenizer::from_gguf(no_prefix), "a a"), (Pieces{"a", kMark, "a"}));
  GgufTokenizerFields ends = tiny_sentencepiece({kMark, "a"});
  ends.add_eos = true;
  EXPECT_EQ(Tokenizer::from_gguf(ends).encode("", {.add_special = true}), (Ids{1, 2}));
}

TEST(TokenizerGguf, WholeWordsOfLlama3AreNotMerged) {
  // "abc" is a token that the merges cannot reach.
  GgufTokenizerFields fields = TinyBpe{.pre = "llama-bpe", .merges = {"b c"}}.gguf();
  fields.tokens.push_back("abc");
  fields.types.push_back(1);
  EXPECT_EQ(texts_of(Tokenizer::from_gguf(fields), "abc abcd"),
            (Pieces{"abc", "\u0120", "a", "bc", "d"}));
  fields.pre = "qwen2";
  EXPECT_EQ(texts_of(Tokenizer::from_gguf(fields), "abc"), (Pieces{"a", "bc"}));
}

TEST(TokenizerGguf, EqualScoresMergeLeftmostFirst) {
  GgufTokenizerFields fields = tiny_sentencepiece({kMark, "a", "b", "ab", "ba"});
  fields.scores[fields.scores.size() - 1] = fields.scores[fields.scores.size() - 2];
  EXPECT_EQ(texts_of(Tokenizer::from_gguf(fields), "bab"), (Pieces{kMark, "ba", "b"}));
}

TEST(TokenizerGguf, UnusedTokensGiveNoText) {
  GgufTokenizerFields fields = TinyBpe{}.gguf();
  fields.tokens.push_back("[PAD1]");
  fields.types.push_back(5);
  const Tokenizer t = Tokenizer::from_gguf(fields);
  EXPECT_EQ(t.decode(Ids{static_cast<int32_t>(t.vocab_size() - 1)}), "");
  EXPECT_EQ(t.encode("[PAD1]").size(), 6u);
}

Json with(Json json, const std::string& pointer, const Json& value) {
  json[Json::json_pointer(pointer)] = value;
  return json;
}

TEST(TokenizerJson, UnsupportedPartsAreRefusedByName) {
  const Json good = TinyBpe{.pre = "qwen2", .merges = {"a b"}}.json();
  const std::vector<std::tuple<std::string, std::string, Json>> changes = {
      {"Lowercase", "/normalizer", {{"type", "Lowercase"}}},
      {"Regex", "/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}}},
      {"BertPreTokenizer", "/pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"Removed", "/pre_tokenizer/pretokenizers/0/behavior", "Removed"},
      {"invert", "/pre_tokenizer/pretokenizers/0/invert", true},
      {"regular expression", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a"},
      {"expected a Regex", "/pre_tokenizer/pretokenizers/0/pattern", {{"String", "a"}}},
      {"add_prefix_space", "/pre_tokenizer/pretokenizers/1/add_prefix_space", true},
      {"does not fit", "/decoder", Json()},
      {"WordPiece", "/decoder", {{"type", "WordPiece"}}},
      {"BertProcessing", "/post_processor", {{"type", "BertProcessing"}}},
      {"Unigram", "/model/type", "Unigram"},
      {"end_of_word_suffix", "/model/end_of_word_suffix", "</w>"},
      {"dropout", "/model/dropout", 0.1},
      {"vocab", "/model/vocab", Json::object()},
      {"whole number", "/model/vocab/a", "x"},
      {"expected 0 to", "/model/vocab/a", -1},
      {"expected 0 to", "/model/vocab/a", int64_t{1} << 33},
      {"two tokens", "/model/vocab/a", 98},
      {"not in the vocabulary", "/model/merges/0", {"a", "zz"}},
      {"expected two tokens", "/model/merges/0", 3},
      {"merges", "/model/merges", Json()},
      {"unk_token", "/model/unk_token", "nope"},
      {"true or false", "/model/byte_fallback", 1},
      {"an object", "/added_tokens/0", 5},
      {"whole number", "/added_tokens/0/id", Json()},
      {"nests", "/pre_tokenizer/pretokenizers/0", {{"type", "Sequence"}}},
      {"\"model\" is missing", "/model", Json()},
  };
  EXPECT_EQ(refusal([&] { Tokenizer::from_tokenizer_json(dump_json(good)); }), "accepted");
  for (const auto& [message, where, value] : changes) {
    const std::string text = dump_json(with(good, where, value));
    const std::string got = refusal([&] { Tokenizer::from_tokenizer_json(text); });
    EXPECT_NE(got.find(message), std::string::npos) << where << ": " << got;
  }
  for (const auto* text : {"", "[]", "{", "{}", "null", "{\"model\": 3}"}) {
    EXPECT_NE(refusal([&] { Tokenizer::from_tokenizer_json(text); }), "accepted") << text;
  }
  EXPECT_NE(refusal([&] { Tokenizer::from_tokenizer_json(dump_json(good), "[]"); }), "accepted");
}

TEST(TokenizerJson, MergesInBothSpellings) {
  Json json = TinyBpe{.merges = {"a b", "ab c"}}.json();
  const Tokenizer lines = Tokenizer::from_tokenizer_json(dump_json(json));
  for (Json& merge : json["model"]["merges"]) {
    const std::string line = merge.get<std::string>();
    const size_t blank = line.find(' ');
    merge = Json::array({line.substr(0, blank), line.substr(blank + 1)});
  }
  const Tokenizer pairs = Tokenizer::from_tokenizer_json(dump_json(json));
  EXPECT_EQ(lines.encode("abcab"), pairs.encode("abcab"));
  EXPECT_EQ(lines.encode("abcab").size(), 2u);
}

TEST(TokenizerJson, FlagsOfAddedTokens) {
  Json json = TinyBpe{.pre = "qwen2"}.json();
  const auto add = [&](const std::string& content, const Json& flags) {
    Json token = {{"id", 300 + json["added_tokens"].size()},
                  {"content", content},
                  {"special", false},
                  {"normalized", false}};
    token.update(flags);
    json["added_tokens"].push_back(token);
  };
  add("word", {{"single_word", true}});
  add("<L>", {{"lstrip", true}});
  add("<R>", {{"rstrip", true}});
  add("caf\u00e9!", {{"normalized", true}});
  const Tokenizer t = Tokenizer::from_tokenizer_json(dump_json(json));
  const auto g = [](std::string_view text) { return testing::in_byte_alphabet(text); };
  EXPECT_EQ(texts_of(t, "a word"), (Pieces{"a", g(" "), "word"}));
  EXPECT_EQ(texts_of(t, "awordb").size(), 6u);
  // Word characters: letters, marks, decimal digits, connectors, letters in circles, join controls.
  for (const char* word : {"a", "\u0301", "3", "\u2167", "_", "\u24b6", "\u200d", "\u0897"}) {
    EXPECT_EQ(std::ranges::count(t.encode(std::string("word") + word), *t.find_token("word")), 0)
        << word;
    EXPECT_EQ(std::ranges::count(t.encode(word + std::string("word")), *t.find_token("word")), 0)
        << word;
  }
  for (const char* other : {"-", "\u00bd", "\u00b2", "\u200b", "\U0001f600", "\u0378"}) {
    EXPECT_EQ(std::ranges::count(t.encode(std::string("word") + other), *t.find_token("word")), 1)
        << other;
    EXPECT_EQ(std::ranges::count(t.encode(other + std::string("word")), *t.find_token("word")), 1)
        << other;
  }
  EXPECT_EQ(texts_of(t, "x \n<L> y"), (Pieces{"x", "<L>", g(" "), "y"}));
  EXPECT_EQ(texts_of(t, "x <R> \u3000y"), (Pieces{"x", g(" "), "<R>", "y"}));
  EXPECT_EQ(texts_of(t, "cafe\u0301!"), (Pieces{"caf\u00e9!"}));
  // The same, typed by a user: the range follows the text through composition.
  const std::string text = "\u00e9e\u0301 cafe\u0301! caf\u00e9!";
  const auto id = *t.find_token("caf\u00e9!");
  const auto begin = static_cast<int64_t>(text.find("caf\u00e9!"));
  const std::vector<TextRange> last = {{begin, static_cast<int64_t>(text.size())}};
  EXPECT_EQ(std::ranges::count(t.encode(text), id), 2);
  EXPECT_EQ(std::ranges::count(t.encode(text, {}, last), id), 1);
}

TEST(TokenizerJson, TokensThatOnlyTheConfigKnows) {
  const std::string json = dump_json(TinyBpe{}.json());
  const Tokenizer t = Tokenizer::from_tokenizer_json(
      json, R"({"added_tokens_decoder": {"400": {"content": "<new>", "special": true}},
                "eos_token": "<new>", "bos_token": null, "add_bos_token": true})");
  EXPECT_EQ(t.encode("<new>"), Ids{400});
  EXPECT_EQ(t.vocab_size(), 401);
  EXPECT_EQ(t.eos_id(), 400);
  EXPECT_FALSE(t.adds_bos());
  EXPECT_EQ(t.decode(Ids{399, 400}), "<new>");
  EXPECT_THROW(Tokenizer::from_tokenizer_json(json, R"({"added_tokens_decoder": {"x": {}}})"),
               Error);
}

TEST(TokenizerJson, Metaspace) {
  Json json = testing::tiny_sentencepiece_json({kMark, "a", "b", kMark + "a", "a" + kMark});
  json["normalizer"] = Json();
  json["decoder"] = {{"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", "first"}};
  json["pre_tokenizer"] = json["decoder"];
  json["pre_tokenizer"]["split"] = false;
  const Tokenizer first = Tokenizer::from_tokenizer_json(dump_json(json));
  EXPECT_EQ(texts_of(first, "a a</s>a</s> a"),
            (Pieces{kMark + "a", kMark + "a", "</s>", "a", "</s>", kMark + "a"}));
  EXPECT_EQ(texts_of(first, "</s>a"), (Pieces{"</s>", "a"}));
  EXPECT_EQ(first.decode(first.encode("a b")), "a b");
  json["pre_tokenizer"]["prepend_scheme"] = "always";
  json["pre_tokenizer"]["split"] = true;
  const Tokenizer always = Tokenizer::from_tokenizer_json(dump_json(json));
  EXPECT_EQ(texts_of(always, "</s>a ba b"),
            (Pieces{"</s>", kMark + "a", kMark, "b", "a", kMark, "b"}));
}

TEST(TokenizerJson, UnknownCharactersWithoutByteTokens) {
  Json json = testing::tiny_sentencepiece_json({kMark, "a"});
  json["model"]["byte_fallback"] = false;
  const Tokenizer fused = Tokenizer::from_tokenizer_json(dump_json(json));
  EXPECT_EQ(texts_of(fused, "a\u00e9\u00e8a"), (Pieces{kMark, "a", "<unk>", "a"}));
  json["model"]["fuse_unk"] = false;
  EXPECT_EQ(Tokenizer::from_tokenizer_json(dump_json(json)).encode("\u00e9\u00e8").size(), 3u);
}

TEST(TokenizerJson, PrefixSpaceOfByteLevel) {
  Json json = TinyBpe{}.json();
  json["pre_tokenizer"]["add_prefix_space"] = true;
  const Tokenizer t = Tokenizer::from_tokenizer_json(dump_json(json));
  EXPECT_EQ(t.encode("a"), t.encode(" a"));
  EXPECT_EQ(t.encode("  a").size(), 3u);
}

}  // namespace
}  // namespace coppice
