#include "coppice/nn/gate.h"

#include <torch/torch.h>

#include <cstddef>
#include <vector>

#include "coppice/ops/encode_q8.h"

namespace coppice::nn {
namespace {

constexpr int64_t kGroup = 32;  // of values that share a scale

ops::PackedMatrix pack_as(StorageType type, const at::Tensor& weight) {
  StoredTensor stored;
  stored.type = type;
  stored.shape = weight.sizes().vec();
  if (type == StorageType::kQ8_0) {
    const std::vector<std::byte> codes =
        ops::encode_q8(weight.contiguous().const_data_ptr<float>(), weight.size(0), weight.size(1));
    stored.bytes = codes;
    return ops::PackedMatrix::pack(stored);
  }
  const at::Tensor rounded = weight.to(at::kBFloat16).contiguous();
  stored.bytes = {static_cast<const std::byte*>(rounded.const_data_ptr()), rounded.nbytes()};
  return ops::PackedMatrix::pack(stored);
}

}  // namespace

std::optional<StorageType> Gate::packed_type(const at::Tensor& weight) {
  if (!at::equal(weight.to(at::kBFloat16).to(at::kFloat), weight)) return std::nullopt;
  return weight.size(-1) % kGroup == 0 ? StorageType::kQ8_0 : StorageType::kBF16;
}

void Gate::pack_layers(std::span<const std::shared_ptr<Linear>> layers) {
  for (const auto& layer : layers) {
    if (layer->is_packed()) continue;
    const auto type = packed_type(layer->weight());
    if (type) layer->pack(pack_as(*type, layer->weight()));
  }
}

}  // namespace coppice::nn
