// What config.json says of an architecture; the fields are its keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/core/json.h"

namespace coppice {

// rope_scaling / rope_parameters of config.json.
struct RopeArgs {
  std::string rope_type = "default";  // "default", "linear" or "llama3"
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 0;
  // [D/2], what each frequency is divided by: a GGUF's rope_freqs tensor. Empty where there is
  // none.
  std::vector<float> frequency_factors;
  // How many frequencies time, height and width turn, summing to D/2; for architectures with
  // three-part positions. Empty: one-part.
  std::vector<int64_t> mrope_section;
};

struct ModelArgs {
  std::string model_type;  // a name of the registry
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;  // stated apart from hidden_size / num_attention_heads where a file does
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeArgs rope;
  std::string hidden_act = "silu";
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // llama: bias of q, k, v and o
  bool mlp_bias = false;
  // DeepStack: after each of so many first layers, an embedding from elsewhere brings another [C]
  // to be added. Not a key of config.json, where the vision side tells it (loader/vision_names.h).
  int64_t deepstack_layers = 0;

  // Of one token in Batch::embeddings: C, and C for each layer of DeepStack.
  int64_t embedding_width() const { return hidden_size * (1 + deepstack_layers); }

  // Throws kInvalidArgument naming the key that is missing, out of range or not supported.
  static ModelArgs from_config(const Json& config);
};

}  // namespace coppice
