#include "coppice/nn/linear.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "coppice/core/error.h"

namespace coppice::nn {
namespace {

ops::PackedMatrix pack(const at::Tensor& weight) {
  StoredTensor stored;
  stored.shape = weight.sizes().vec();
  stored.bytes = {static_cast<const std::byte*>(weight.const_data_ptr()), weight.nbytes()};
  return ops::PackedMatrix::pack(stored);
}

std::shared_ptr<Linear> make(int64_t in, int64_t out, bool bias, bool packed) {
  auto layer = std::make_shared<Linear>(in, out, bias);
  torch::NoGradGuard no_gradient;
  for (auto& parameter : layer->parameters())
    parameter.copy_(torch::randn_like(parameter).to(torch::kBFloat16));
  if (packed) layer->pack(pack(layer->weight()));
  return layer;
}

TEST(Linear, packed_equals_dense) {
  for (bool bias : {false, true}) {
    const auto layer = make(32, 48, bias, false);
    const at::Tensor x = torch::randn({3, 32});
    const at::Tensor wanted = layer->forward(x);
    layer->pack(pack(layer->weight()));
    EXPECT_TRUE(layer->is_packed());
    EXPECT_FALSE(layer->named_parameters().contains("weight"));
    EXPECT_LE((layer->forward(x) - wanted).abs().max().item<double>(), 1e-4);
  }
}

TEST(Linear, refuses_a_matrix_of_another_shape) {
  Linear layer(32, 48, false);
  EXPECT_THROW(layer.pack(pack(torch::randn({32, 48}))), Error);
  EXPECT_FALSE(layer.is_packed());
}

TEST(Linear, together_equals_one_by_one) {
  for (int64_t tokens : {1, 9}) {
    std::vector<std::shared_ptr<Linear>> layers = {
        make(32, 48, true, true), make(32, 5, false, false), make(32, 16, false, true)};
    const at::Tensor x = torch::randn({tokens, 32});
    Linear* const pointers[] = {layers[0].get(), layers[1].get(), layers[2].get()};
    const std::vector<at::Tensor> together = forward_together(pointers, x);
    ASSERT_EQ(together.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(at::equal(together[i], layers[i]->forward(x))) << i;
  }
}

}  // namespace
}  // namespace coppice::nn
