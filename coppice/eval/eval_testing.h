// Helpers for tests of evaluations: a record file that goes away, and a text side for tiny models.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "coppice/core/error.h"
#include "coppice/engine/engine_testing.h"
#include "coppice/eval/asking.h"
#include "coppice/eval/eval_task.h"
#include "coppice/processor/tokenizer.h"

namespace coppice::testing {

// A path of this test alone; what stands there at the end is removed.
class ScratchFile final {
 public:
  ScratchFile() {
    static std::atomic<int> count = 0;
    path_ = (std::filesystem::temp_directory_path() /
             fmt::format("coppice-eval-{}-{}.jsonl", ::getpid(), count++))
                .string();
    std::filesystem::remove(path_);
  }
  ~ScratchFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// 256 bytes, one merge that no text here has (the file format wants one), then <|im_start|> and
// <|im_end|>, which ends a text.
inline constexpr int64_t kByteVocab = 259;
inline constexpr int32_t kByteEnd = 258;
inline Tokenizer byte_tokenizer() {
  GgufTokenizerFields fields;
  fields.model = "gpt2";
  fields.pre = "gpt-2";
  int spare = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte > 32 && byte < 127) || (byte >= 161 && byte <= 255 && byte != 173);
    const int code = plain ? byte : spare++;
    std::string text;
    if (code < 0x80) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
    }
    fields.tokens.push_back(text);
    fields.types.push_back(1);
  }
  fields.tokens.emplace_back("qz");
  fields.types.push_back(1);
  fields.merges = {"q z"};
  for (const char* text : {"<|im_start|>", "<|im_end|>"}) {
    fields.tokens.emplace_back(text);
    fields.types.push_back(3);
  }
  fields.eos_id = kByteEnd;
  return Tokenizer::from_gguf(fields);
}

// A tiny model over bytes with its text side; `tokenizer` and `chat` must outlive it.
inline TextModel byte_text_model(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                 int64_t positions) {
  ModelArgs args = tiny_args();
  args.vocab_size = kByteVocab;
  args.max_position_embeddings = positions;
  TextModel model;
  model.base.model = tiny_model(true, args);
  model.base.chunk_tokens = 64;
  model.tokenizer = &tokenizer;
  model.chat = &chat;
  model.end_token_ids = {kByteEnd};
  return model;
}

// A task of which only the names of its rows are asked.
struct KeysOnly final : EvalTask {
  explicit KeysOnly(Json key_in) : key(std::move(key_in)) {}
  std::string_view name() const override { return "keys"; }
  Json config() const override { return Json::object(); }
  int64_t items() const override { return 1; }
  std::vector<Json> keys(int64_t) const override { return {key}; }
  int64_t tokens(int64_t) const override { return 1; }
  std::vector<Json> run(int64_t, const EvictionConfig&) override { return {}; }
  std::vector<std::string> outcome() const override { return {}; }
  Json summarise(const RowTable&, const std::vector<EvictionConfig>&) const override { return {}; }
  std::string table(const Json&) const override { return {}; }

  Json key;
};

}  // namespace coppice::testing
