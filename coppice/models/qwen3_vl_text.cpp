// The text model of Qwen3-VL, dense: Qwen3 with three-part positions, whose axes take turns over
// the frequencies, and pictures' features added after the first layers (DeepStack,
// arXiv:2406.04334). Source: arXiv:2511.21631, and the published checkpoints.
#include "coppice/models/architectures.h"
#include "coppice/models/decoder.h"

namespace coppice::models {

std::shared_ptr<Model> make_qwen3_vl_text(const ModelArgs& args) {
  DecoderOptions options;
  options.qkv_bias = args.attention_bias;
  options.output_bias = args.attention_bias;
  options.qk_norm = true;
  return std::make_shared<Decoder>(args, options);
}

}  // namespace coppice::models
