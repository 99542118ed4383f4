// Tokenizer files (tokenizer.json, GGUF fields) and hostile text through good tokenizers.
#include <algorithm>
#include <string_view>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/processor/tokenizer.h"
#include "coppice/processor/tokenizer_testing.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using namespace coppice;

constexpr char kText = 'T';  // first byte: the rest is text; 'G': GGUF fields; else tokenizer.json
constexpr char kGguf = 'G';

void demand(bool right, const char* what) {
  if (!right) throw std::logic_error(what);
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  const auto size = static_cast<int64_t>(text.size());
  const std::vector<TextRange> middle = {{size / 4, size / 2}};
  const std::vector<TextRange> whole = {{0, size}};
  for (const auto& ids : {tokenizer.encode(text), tokenizer.encode(text, {}, middle),
                          tokenizer.encode(text, {.add_special = true})}) {
    const std::string decoded = tokenizer.decode(ids);
    demand(is_valid_utf8(decoded), "decoded text is not UTF-8");
    demand(testing::streamed(tokenizer, ids) == decoded, "stream and whole decode differ");
  }
  for (const int32_t id : tokenizer.encode(text, {}, whole)) {
    demand(id == tokenizer.unk_id() || !tokenizer.is_special(id), "a control token in plain text");
  }
}

const std::vector<Tokenizer>& good_tokenizers() {
  static const std::vector<Tokenizer> tokenizers = [] {
    std::vector<Tokenizer> all;
    for (const auto* pre : {"gpt-2", "smollm", "qwen2", "llama-bpe"}) {
      const testing::TinyBpe bpe{.pre = pre, .merges = {"a a", "  a", "\n \n", "\xCC \x81"}};
      all.push_back(Tokenizer::from_gguf(bpe.gguf()));
    }
    all.push_back(
        Tokenizer::from_gguf(testing::tiny_sentencepiece({"\u2581", "a", "<", "s", ">"})));
    return all;
  }();
  return tokenizers;
}

// One line a field: model, pre, then tokens (type digit, text), a blank line, then merges.
GgufTokenizerFields fields_of(std::string_view data) {
  GgufTokenizerFields fields;
  const auto line = [&] {
    const size_t end = std::min(data.find('\n'), data.size());
    const std::string one(data.substr(0, end));
    data.remove_prefix(std::min(end + 1, data.size()));
    return one;
  };
  fields.model = line();
  fields.pre = line();
  while (!data.empty()) {
    const std::string token = line();
    if (token.empty()) break;
    fields.types.push_back(token[0] - '0');
    fields.scores.push_back(-static_cast<float>(fields.tokens.size() % 7));
    fields.tokens.push_back(token.substr(1));
  }
  while (!data.empty()) fields.merges.push_back(line());
  fields.bos_id = 1;
  return fields;
}

std::string lines_of(const GgufTokenizerFields& fields) {
  std::string out = kGguf + fields.model + "\n" + fields.pre + "\n";
  for (size_t i = 0; i < fields.tokens.size(); ++i) {
    out += std::to_string(fields.types[i]) + fields.tokens[i] + "\n";
  }
  out += "\n";
  for (const std::string& merge : fields.merges) out += merge + "\n";
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view sample = "a  <s>\u00e9e\u0301 12 <|im_start|>a\n\n\xFF";
  try {
    if (input.starts_with(kText)) {
      for (const Tokenizer& tokenizer : good_tokenizers()) use(tokenizer, input.substr(1));
    } else if (input.starts_with(kGguf)) {
      use(Tokenizer::from_gguf(fields_of(input.substr(1))), sample);
    } else {
      use(Tokenizer::from_tokenizer_json(input), sample);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw;
  }
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds = {
      std::string("T") + "a b\u00e9 e\u0301\u0316 <|im_start|><think>don't 123\n\n  x",
      std::string("T\xF0\x9F\x98<bos>\xED\xA0\x80</s> \xE2\x96\x81"),
      "Tx" + testing::repeat(" \n", 50) + testing::repeat("\u0301\u0316", 50),
  };
  const testing::TinyBpe bpe{.pre = "qwen2", .merges = {"a a", "  a"}};
  const std::vector<std::string> pieces = {"\u2581", "a", "\u2581a", "aa"};
  Json json = bpe.json();
  json["added_tokens"].push_back({{"id", 270},
                                  {"content", "a e"},
                                  {"lstrip", true},
                                  {"rstrip", true},
                                  {"single_word", true},
                                  {"special", false}});
  seeds.push_back(dump_json(json));
  seeds.push_back(dump_json(testing::tiny_sentencepiece_json(pieces)));
  seeds.push_back(lines_of(bpe.gguf()));
  seeds.push_back(lines_of(testing::tiny_sentencepiece(pieces)));
  return seeds;
}
