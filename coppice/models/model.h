// What every architecture is: packed tokens in, hidden states out, logits on demand.
//
// A model sees no cache, scheduler, phase or device: the backend it is handed decides what its
// queries attend over. One file per architecture; the list is in models/registry.cpp.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <utility>

#include "coppice/models/model_args.h"
#include "coppice/nn/attention_backend.h"
#include "coppice/nn/batch.h"

namespace coppice {

struct Model : torch::nn::Module {
  explicit Model(const ModelArgs& args) : args_(args) {}
  const ModelArgs& args() const { return args_; }
  // As gate files name it; empty without gates. Set by attach_gate().
  const std::string& gate_kind() const { return gate_kind_; }
  void set_gate_kind(std::string kind) { gate_kind_ = std::move(kind); }

  // -> [N, C], all sequences packed: the final norm's output. Float32, or the type of dense
  // weights.
  virtual torch::Tensor forward(const Batch& batch, AttentionBackend& backend) = 0;
  // ids [N] int64 -> [N, C], what forward() makes of token ids: for batches that mix them with
  // embeddings from elsewhere.
  virtual torch::Tensor embed(const torch::Tensor& ids) = 0;
  // hidden [M, C] -> [M, V], the same type.
  virtual torch::Tensor logits(const torch::Tensor& hidden) = 0;

 private:
  ModelArgs args_;
  std::string gate_kind_;
};

}  // namespace coppice
