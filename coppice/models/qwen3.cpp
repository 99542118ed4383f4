// Qwen3, dense: each head's q and k are normed before the rotation; head_dim stands apart from
// hidden_size / num_attention_heads.
#include "coppice/models/architectures.h"
#include "coppice/models/decoder.h"

namespace coppice::models {

std::shared_ptr<Model> make_qwen3(const ModelArgs& args) {
  DecoderOptions options;
  options.qkv_bias = args.attention_bias;
  options.output_bias = args.attention_bias;
  options.qk_norm = true;
  return std::make_shared<Decoder>(args, options);
}

}  // namespace coppice::models
