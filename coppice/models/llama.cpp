// Llama 1 to 3 and models of its shape (SmolLM2, Mistral without a window).
#include "coppice/models/architectures.h"
#include "coppice/models/decoder.h"

namespace coppice::models {

std::shared_ptr<Model> make_llama(const ModelArgs& args) {
  DecoderOptions options;
  options.qkv_bias = args.attention_bias;
  options.output_bias = args.attention_bias;
  options.mlp_bias = args.mlp_bias;
  return std::make_shared<Decoder>(args, options);
}

}  // namespace coppice::models
