// Settings and weights of vision towers. Internal to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "coppice/core/json.h"
#include "coppice/loader/weight_loader.h"
#include "coppice/models/load.h"
#include "coppice/nn/linear.h"

namespace coppice::models {

// A whole number of a config object from 1 on; `missing` where the key is absent (0: it must be
// there). Throws kInvalidArgument naming `where` and the key.
int64_t size_of(const Json& config, const char* where, const char* key, int64_t missing);

// The token that stands for a picture: of `key`, `missing` where it is absent.
int64_t image_token_of(const Json& config, const char* key, int64_t missing, int64_t vocab_size);

// Hands out the vision side's weights. Layers keep their own.
class VisionWeights final {
 public:
  VisionWeights(WeightLoader& loader, WeightMode mode) : loader_(loader), mode_(mode) {}

  at::Tensor tensor(const std::string& name, const std::vector<int64_t>& shape);  // float32
  std::shared_ptr<nn::Linear> linear(const std::string& name, int64_t in, int64_t out, bool bias);

 private:
  WeightLoader& loader_;
  WeightMode mode_;
};

struct LayerNorm {
  at::Tensor weight, bias;  // [C]
  double eps = 1e-5;

  LayerNorm() = default;
  LayerNorm(VisionWeights& weights, const std::string& name, int64_t width, double eps);
  at::Tensor forward(const at::Tensor& x) const;  // [N, C] -> [N, C]
};

// "gelu", "gelu_pytorch_tanh" or "quick_gelu"; throws kInvalidArgument for another name.
at::Tensor apply_activation(const std::string& name, const at::Tensor& x);
void check_activation(const std::string& name);

// Attention of all tokens to all, q, k, v [N, heads x D] -> [N, heads x D].
at::Tensor attend_to_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         int64_t heads);

}  // namespace coppice::models
