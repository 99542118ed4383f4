#include "coppice/models/load.h"

#include <torch/torch.h>

#include <optional>
#include <set>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/loader/vision_names.h"
#include "coppice/loader/weight_loader.h"
#include "coppice/models/registry.h"
#include "coppice/nn/embedding.h"
#include "coppice/nn/linear.h"
#include "coppice/ops/packed_matrix.h"

namespace coppice {
namespace {

constexpr const char* kRopeFactors = "rope_freqs.weight";
constexpr const char* kHead = "lm_head.weight";

// The matrices, which become packed. What they held dense is given up.
void fill_packed(Model& model, WeightLoader& loader) {
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    const std::string name = item.key() + ".weight";
    if (auto* linear = item.value()->as<nn::Linear>())
      linear->pack(ops::PackedMatrix::pack(loader.take(name, {linear->out(), linear->in()})));
    else if (auto* table = item.value()->as<nn::Embedding>())
      table->pack(
          ops::PackedMatrix::pack(loader.take(name, {table->vocab_size(), table->hidden_size()})));
  }
}

void fill_dense(Model& model, WeightLoader& loader, at::ScalarType dtype) {
  for (auto& item : model.named_parameters())
    item.value().set_data(loader.take_float(item.key(), item.value().sizes().vec()).to(dtype));
}

ModelArgs read_args(const Checkpoint& checkpoint, WeightLoader& loader) {
  ModelArgs args = ModelArgs::from_config(checkpoint.config());
  if (!checkpoint.contains(kRopeFactors)) return args;
  const at::Tensor factors = loader.take_float(kRopeFactors, {args.head_dim / 2}).contiguous();
  const float* data = factors.const_data_ptr<float>();
  args.rope.frequency_factors.assign(data, data + factors.numel());
  return args;
}

StorageType storage_type(const TensorInfo& info) {
  for (int i = 0; i <= static_cast<int>(StorageType::kIQ4_NL); ++i)
    if (storage_traits(static_cast<StorageType>(i)).name == info.type)
      return static_cast<StorageType>(i);
  fail_argument("tensor {}: type {} cannot be a weight", info.name, info.type);
}

}  // namespace

std::shared_ptr<Model> load_model(const Checkpoint& checkpoint, WeightMode mode,
                                  const GateWeights* gate) {
  WeightLoader loader(checkpoint);
  for (const std::string& name : checkpoint.names())
    if (is_vision_tensor(name) && !checkpoint.vision_config().is_null()) loader.ignore(name);
  const ModelArgs args = read_args(checkpoint, loader);
  const std::shared_ptr<Model> model = make_model(args);
  if (args.tie_word_embeddings) loader.ignore(kHead);
  if (mode == WeightMode::kPacked) fill_packed(*model, loader);
  fill_dense(*model, loader, mode == WeightMode::kBFloat16 ? at::kBFloat16 : at::kFloat);
  loader.finish();
  if (gate != nullptr) attach_gate(*model, *gate);
  model->eval();
  return model;
}

int64_t weight_bytes(const Checkpoint& checkpoint, WeightMode mode, const GateWeights* gate) {
  const ModelArgs args = ModelArgs::from_config(checkpoint.config());
  int64_t bytes = gate != nullptr ? gate_bytes(*gate, mode == WeightMode::kPacked) : 0;
  for (const TensorInfo& info : checkpoint.tensor_infos()) {
    const bool unused = info.name == kRopeFactors || info.name.ends_with("rotary_emb.inv_freq") ||
                        (info.name == kHead && args.tie_word_embeddings) ||
                        is_vision_tensor(info.name);
    if (!unused) bytes += tensor_bytes(info, mode);
  }
  return bytes;
}

int64_t tensor_bytes(const TensorInfo& info, WeightMode mode) {
  int64_t values = 1;
  for (int64_t dim : info.shape) values *= dim;
  const bool packed = mode == WeightMode::kPacked && info.shape.size() == 2;
  return packed ? ops::packed_bytes(storage_type(info), info.shape[0], info.shape[1])
                : values * (mode == WeightMode::kBFloat16 ? 2 : 4);
}

}  // namespace coppice
