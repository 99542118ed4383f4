#include "coppice/models/vision_parts.h"

#include <torch/torch.h>

#include <utility>

#include "coppice/core/error.h"
#include "coppice/ops/packed_matrix.h"

namespace coppice::models {

int64_t size_of(const Json& config, const char* where, const char* key, int64_t missing) {
  constexpr int64_t kMost = int64_t{1} << 24;
  const Json value = config.value(key, Json());
  if (value.is_null() && missing > 0) return missing;
  if (!value.is_number_integer() || value < 1 || value > kMost)
    fail_argument("{}: \"{}\" must be a whole number from 1 to {}, got {}", where, key, kMost,
                  dump_json(value).substr(0, 40));
  return value.get<int64_t>();
}

int64_t image_token_of(const Json& config, const char* key, int64_t missing, int64_t vocab_size) {
  const Json id = config.value(key, Json(missing));
  if (!id.is_number_integer() || id < 0 || id >= vocab_size)
    fail_argument("{} must be a token of the vocabulary of {}, got {}", key, vocab_size,
                  dump_json(id).substr(0, 40));
  return id.get<int64_t>();
}

at::Tensor VisionWeights::tensor(const std::string& name, const std::vector<int64_t>& shape) {
  return loader_.take_float(name, shape).clone();
}

std::shared_ptr<nn::Linear> VisionWeights::linear(const std::string& name, int64_t in, int64_t out,
                                                  bool bias) {
  auto layer = std::make_shared<nn::Linear>(in, out, bias);
  auto parameters = layer->named_parameters();
  if (bias) parameters["bias"].set_data(tensor(name + ".bias", {out}));
  if (mode_ == WeightMode::kPacked) {
    layer->pack(ops::PackedMatrix::pack(loader_.take(name + ".weight", {out, in})));
  } else {
    parameters["weight"].set_data(tensor(name + ".weight", {out, in}));
  }
  return layer;
}

LayerNorm::LayerNorm(VisionWeights& weights, const std::string& name, int64_t width, double eps_in)
    : weight(weights.tensor(name + ".weight", {width})),
      bias(weights.tensor(name + ".bias", {width})),
      eps(eps_in) {}

at::Tensor LayerNorm::forward(const at::Tensor& x) const {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, eps);
}

void check_activation(const std::string& name) {
  if (name != "gelu" && name != "gelu_pytorch_tanh" && name != "quick_gelu")
    fail_argument(
        "the activation \"{}\" of a vision tower is not supported; supported are: gelu, "
        "gelu_pytorch_tanh, quick_gelu",
        name);
}

at::Tensor apply_activation(const std::string& name, const at::Tensor& x) {
  check_activation(name);
  if (name == "quick_gelu") return x * at::sigmoid(1.702 * x);
  return at::gelu(x, name == "gelu" ? "none" : "tanh");
}

at::Tensor attend_to_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         int64_t heads) {
  const int64_t tokens = q.size(0), width = q.size(1);
  const auto split = [&](const at::Tensor& x) {
    return x.reshape({1, tokens, heads, width / heads}).transpose(1, 2);
  };
  return at::scaled_dot_product_attention(split(q), split(k), split(v))
      .transpose(1, 2)
      .reshape({tokens, width});
}

}  // namespace coppice::models
