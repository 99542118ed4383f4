#include "coppice/engine/load_text.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/core/mapped_file.h"
#include "coppice/loader/gguf_file.h"

namespace coppice {
namespace {

GgufTokenizerFields gguf_fields(const GgufFile& file) {
  GgufTokenizerFields fields;
  const auto copy_texts = [&file](std::string_view key, std::vector<std::string>& to) {
    if (const auto found = file.find_strings(key)) to.assign(found->begin(), found->end());
  };
  fields.model = file.find_string("tokenizer.ggml.model").value_or("");
  if (fields.model.empty()) {
    fail(ErrorCode::kNotFound, "{} holds no tokenizer (key tokenizer.ggml.model)", file.path());
  }
  fields.pre = file.find_string("tokenizer.ggml.pre").value_or("");
  copy_texts("tokenizer.ggml.tokens", fields.tokens);
  copy_texts("tokenizer.ggml.merges", fields.merges);
  if (const auto scores = file.find_floats("tokenizer.ggml.scores")) {
    fields.scores.assign(scores->begin(), scores->end());
  }
  if (const auto types = file.find_ints("tokenizer.ggml.token_type")) {
    fields.types.assign(types->begin(), types->end());
  }
  fields.bos_id = file.find_int("tokenizer.ggml.bos_token_id");
  fields.eos_id = file.find_int("tokenizer.ggml.eos_token_id");
  fields.eot_id = file.find_int("tokenizer.ggml.eot_token_id");
  fields.eom_id = file.find_int("tokenizer.ggml.eom_token_id");
  fields.unk_id = file.find_int("tokenizer.ggml.unknown_token_id");
  fields.pad_id = file.find_int("tokenizer.ggml.padding_token_id");
  fields.add_bos = file.find_bool("tokenizer.ggml.add_bos_token");
  fields.add_eos = file.find_bool("tokenizer.ggml.add_eos_token");
  fields.add_space_prefix = file.find_bool("tokenizer.ggml.add_space_prefix");
  return fields;
}

}  // namespace

Tokenizer load_tokenizer(const Checkpoint& checkpoint) {
  const TokenizerSource& source = checkpoint.tokenizer();
  if (source.gguf != nullptr) return Tokenizer::from_gguf(gguf_fields(*source.gguf));
  const std::string path = (std::filesystem::path(source.folder) / "tokenizer.json").string();
  return Tokenizer::from_tokenizer_json(read_text_file(path),
                                        source.config.empty() ? "" : dump_json(source.config));
}

std::vector<int64_t> end_token_ids(const Checkpoint& checkpoint, const Tokenizer& tokenizer) {
  std::vector<int64_t> ids = checkpoint.generation().eos_token_ids;
  ids.insert(ids.end(), tokenizer.end_ids().begin(), tokenizer.end_ids().end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace coppice
