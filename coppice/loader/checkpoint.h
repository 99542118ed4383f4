// One view over a model's files, whatever their format: a GGUF file, or a Hugging Face folder.
//
// Whatever the file, config() has the keys of Hugging Face's config.json and tensors bear the names
// of its checkpoints. For GGUF:
//   - config() is made from the metadata of the architectures llama, qwen2 and qwen3; any other is
//     refused by name.
//   - q and k rows of `llama` files, which stand interleaved for a RoPE that rotates neighbours,
//   are
//     put back into halves order when they are first asked for, so one RoPE serves every model.
//   - "rope_freqs.weight" [D / 2] keeps its name: each rotary frequency is divided by its factor.
//   - lm_head.weight is absent, and tie_word_embeddings true, when the file has no output.weight.
// Move-only. find() may rearrange and keep rows: one thread at a time until all tensors are taken.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/core/stored_tensor.h"

namespace coppice {

class GgufFile;

// What generation needs to know beyond the weights. Source for a folder: generation_config.json,
// config.json and tokenizer_config.json; for GGUF: the tokenizer.ggml metadata.
struct GenerationDefaults {
  // Every token that ends an answer: the union over all sources, in their order. GGUF files name
  // one at most, so their control tokens with a well-known end-of-turn text are added.
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> pad_token_id;
  std::optional<bool>
      add_bos_token;  // as stated; nullopt where the files leave it to the tokenizer
  std::optional<bool> add_eos_token;
  Json sampling = Json::object();  // generation_config.json: temperature, top_p, top_k, ...
};

// Where a tokenizer is to be built from: exactly one of the two is set.
struct TokenizerSource {
  const GgufFile* gguf = nullptr;  // metadata "tokenizer.ggml.*"; lives as long as the Checkpoint
  std::string folder;              // holds tokenizer.json
  Json config = Json::object();    // tokenizer_config.json; an empty object when there is none
};

// A tensor as its header tells it, without its data.
struct TensorInfo {
  std::string name;
  std::string type;            // "Q4_K", "BF16"; of a folder any safetensors dtype
  std::vector<int64_t> shape;  // row-major
  int64_t bytes = 0;
};

class Checkpoint final {
 public:
  // `path`: a GGUF file, or a folder with config.json and safetensors weights.
  // Throws kNotFound or kInvalidArgument saying which file is missing, damaged or not supported.
  static Checkpoint open(const std::string& path);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::string& path() const;
  const std::string& format() const;  // "GGUF v3" or "safetensors"
  const Json& config() const;
  // Of a vision-language folder: all of config.json, while config() is its text model's and tensors
  // of the vision side bear the names of loader/vision_names.h. Null otherwise.
  const Json& vision_config() const;
  // Of processor_config.json, else preprocessor_config.json of such a folder; null without both.
  const Json& image_processor_config() const;
  const GenerationDefaults& generation() const;
  const TokenizerSource& tokenizer() const;

  // Chat templates by name; the usual one is "default". Empty when the files have none.
  const std::map<std::string, std::string>& chat_templates() const;

  // In the order of names.
  std::vector<std::string> names() const;
  std::vector<TensorInfo> tensor_infos() const;
  bool contains(std::string_view name) const;
  // The header alone; nullopt when there is no such tensor.
  std::optional<TensorInfo> tensor_info(std::string_view name) const;

  // nullptr when there is no such tensor. Lives as long as the Checkpoint; a copy of the
  // StoredTensor lives on its own. Throws kInvalidArgument when its dtype cannot be a weight.
  const StoredTensor* find(std::string_view name) const;

  // Of the weight files, in lower-case hexadecimal; read on the first call. Several shards are
  // hashed one after another in the order of their names.
  const std::string& sha256() const;
  // What sha256() would find, known from elsewhere: it is then not read.
  void set_sha256(std::string hash);
  std::vector<std::string> weight_files() const;  // in the order that they are hashed
  int64_t file_bytes() const;                     // of the weight files
  int64_t parameters() const;                     // values in all tensors

  // For people and `inspect`: format, name, architecture, sizes, tensor types and counts.
  Json description() const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace coppice
