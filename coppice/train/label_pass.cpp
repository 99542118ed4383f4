#include "coppice/train/label_pass.h"

#include <torch/torch.h>

#include <utility>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/models/model.h"
#include "coppice/nn/attention.h"
#include "coppice/nn/decoder_layer.h"
#include "coppice/ops/retention_attention.h"
#include "coppice/train/teacher.h"

namespace coppice {
namespace {

at::Tensor output_weight(const Model& model, int64_t layer) {
  const std::string name = fmt::format("model.layers.{}.self_attn.o_proj.weight", layer);
  const auto parameters = model.named_parameters();
  const at::Tensor* weight = parameters.find(name);
  if (weight == nullptr) fail_argument("training needs dense weights: there is no {}", name);
  return weight->detach();
}

}  // namespace

LabelPass::LabelPass(Model& model, OfLayer of_layer)
    : model_(model), of_layer_(std::move(of_layer)) {
  for (nn::DecoderLayer* layer : decoder_layers(model))
    layer->set_observer([this](int64_t, const at::Tensor& residual, const at::Tensor& normed) {
      norm_ = residual.to(at::kFloat).norm(2, {1});
      normed_ = normed.clone();
    });
}

LabelPass::~LabelPass() {
  for (nn::DecoderLayer* layer : decoder_layers(model_)) layer->set_observer({});
}

at::Tensor LabelPass::forward(const AttentionInput& input, const Batch& batch) {
  ops::NeedInput need;
  need.q = input.q;
  need.k = input.k;
  need.v = input.v;
  need.output_weight = output_weight(model_, input.layer);
  need.residual_norm = norm_;
  need.cu_seqlens = batch.cu_seqlens;
  need.scale = input.scale;
  of_layer_(need, normed_);
  const at::Tensor zeros = torch::zeros({input.k.size(0), input.k.size(1)}, at::kFloat);
  return ops::retention_attention(input.q, input.k, input.v, zeros.to(input.k.device()),
                                  batch.cu_seqlens, input.scale);
}

void LabelPass::check(const Model& model) { output_weight(model, 0); }

at::Tensor draw_places(int64_t count, int64_t below, Rng& rng) {
  at::Tensor places = torch::empty({count}, torch::kLong);
  for (int64_t i = 0; i < count; ++i)
    places.mutable_data_ptr<int64_t>()[i] =
        static_cast<int64_t>(rng.below(static_cast<uint64_t>(below)));
  return places;
}

at::Tensor gate_outputs(const Model& model,
                        const std::function<at::Tensor(std::size_t layer)>& input) {
  std::vector<at::Tensor> of_layers;
  const std::vector<nn::DecoderLayer*> layers = decoder_layers(model);
  for (std::size_t l = 0; l < layers.size(); ++l)
    of_layers.push_back(layers[l]->self_attn().gate()->forward(input(l)));
  return torch::stack(of_layers, 1);
}

}  // namespace coppice
