// A loaded model with its text side and its engine: what run, chat and eval start from.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/options.h"
#include "coppice/engine/engine.h"
#include "coppice/engine/image_encoder.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/loader/gate_checkpoint.h"
#include "coppice/models/load.h"
#include "coppice/processor/chat_template.h"
#include "coppice/processor/tokenizer.h"

namespace coppice {

// The path behind --model: "smollm2" is the fetched default model. Throws kNotFound saying how to
// get it.
std::string model_path(const std::string& model);

// The model's own chat template, ChatML where its vocabulary has that one's tokens (said on
// stderr), or none.
std::optional<ChatTemplate> find_template(const Checkpoint& checkpoint, const Tokenizer& tokenizer);

// The path of the gate that --gate names, or of the shipped retention gate whose base-model hash is
// the checkpoint's; empty when there is none.
std::string gate_path(const ModelOptions& options, Checkpoint& checkpoint);

// The gate of gate_path(); nullopt when there is none. Throws when it does not fit the model.
std::optional<GateWeights> find_gate(const ModelOptions& options, Checkpoint& checkpoint);

// The policy and its settings for `budget_entries` per head. Says on stderr when it falls back to
// streaming.
EvictionConfig eviction_config(const ModelOptions& options, const std::string& gate_kind,
                               int64_t budget_entries);

// Entries per head that --kv-budget comes to, for a text of `tokens`.
int64_t budget_entries(const ModelOptions& options, const CacheConfig& cache, int64_t tokens);

at::ScalarType kv_dtype(const ModelOptions& options);
WeightMode weight_mode(const ModelOptions& options);
void set_threads(const ModelOptions& options);

// Everything loaded. Engines are made per run, once the length of the text is known.
class Runtime final {
 public:
  explicit Runtime(const ModelOptions& options);

  const ModelOptions& options() const { return options_; }
  const std::string& path() const { return path_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const std::vector<int64_t>& end_token_ids() const { return end_token_ids_; }
  // Throws kNotFound when the model brings no template that can be used.
  const ChatTemplate& chat_template() const;
  // Null then.
  const ChatTemplate* find_chat_template() const { return template_ ? &*template_ : nullptr; }
  const std::shared_ptr<Model>& model() const { return model_; }
  // Null for a model that reads text alone.
  ImageEncoder* images() const { return images_.get(); }
  // A picture file. Throws kInvalidArgument for a model that reads text alone, and as
  // ImageEncoder::encode with the file's name.
  ImageEncoder::Encoded encode_image(const std::string& file) const;
  // coppice::set_prompt for this model; `pictures` is empty where it reads text alone.
  void set_prompt(Request& request, std::span<const int32_t> ids,
                  std::span<const ImageEncoder::Encoded> pictures, int64_t first = 0) const;
  CacheConfig cache() const;
  const std::string& gate_kind() const { return model_->gate_kind(); }
  double load_seconds() const { return load_seconds_; }

  // Tokens a sequence may come to: `prompt` and `max_tokens` where that is known, else the trained
  // range, or no end at all with compact positions.
  int64_t longest_tokens(int64_t prompt, std::optional<int64_t> max_tokens) const;
  // An engine whose pool holds `sequences` of `longest` tokens under --kv-budget. A budget that is
  // a share is that share of `text_tokens`, prompt and new ones; one in bytes is for all sequences.
  std::unique_ptr<Engine> make_engine(int64_t text_tokens, int64_t longest,
                                      int64_t sequences = 1) const;
  // What the flags come to for such an engine.
  EngineConfig engine_config(int64_t text_tokens, int64_t longest, int64_t sequences = 1) const;

 private:
  struct Loading;
  // The files are closed once everything is read from them: nothing of theirs stays in memory.
  Runtime(const ModelOptions& options, Checkpoint checkpoint);
  Runtime(const ModelOptions& options, const Checkpoint& checkpoint, Loading loading);

  ModelOptions options_;
  std::string path_;
  std::shared_ptr<Model> model_;
  Tokenizer tokenizer_;
  std::vector<int64_t> end_token_ids_;
  std::optional<ChatTemplate> template_;
  std::unique_ptr<ImageEncoder> images_;
  double load_seconds_ = 0;
};

}  // namespace coppice
