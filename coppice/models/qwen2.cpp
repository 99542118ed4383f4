// Qwen2 and Qwen2.5: bias on q, k and v, always.
#include "coppice/models/architectures.h"
#include "coppice/models/decoder.h"

namespace coppice::models {

std::shared_ptr<Model> make_qwen2(const ModelArgs& args) {
  DecoderOptions options;
  options.qkv_bias = true;
  return std::make_shared<Decoder>(args, options);
}

}  // namespace coppice::models
