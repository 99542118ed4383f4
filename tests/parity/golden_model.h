// Reads the golden cases of tools/make_model_golden.py, and runs greedy generation by recomputing.
#pragma once

#include <torch/torch.h>

#include <cstring>
#include <string>
#include <vector>

#include "coppice/attention/dense_backend.h"
#include "coppice/core/error.h"
#include "coppice/loader/safetensors_file.h"
#include "coppice/models/load.h"

namespace coppice::golden {

inline const std::vector<std::string>& cases() {
  static const std::vector<std::string> names = {"llama", "llama-rope3", "llama-bias", "qwen2",
                                                 "qwen3"};
  return names;
}

inline std::string folder(const std::string& name) {
  return std::string(COPPICE_SOURCE_DIR) + "/tests/golden/models/" + name;
}

// One tensor of expected.safetensors, float32 or int64.
inline at::Tensor expected(const std::string& name, const std::string& tensor) {
  const auto file = SafetensorsFile::open(folder(name) + "/expected.safetensors");
  const SafetensorsEntry* entry = file.find(tensor);
  if (entry == nullptr) fail_argument("{}: no expected {}", name, tensor);
  const auto dtype = entry->dtype == "I64" ? at::kLong : at::kFloat;
  at::Tensor result = torch::empty(entry->shape, dtype);
  std::memcpy(result.data_ptr(), entry->bytes.data(), entry->bytes.size());
  return result;
}

// One sequence whose tokens sit at first_position and on.
inline Batch single(const at::Tensor& ids, int64_t first_position = 0) {
  Batch batch;
  batch.token_ids = ids;
  batch.positions = torch::arange(first_position, first_position + ids.numel(), torch::kLong);
  batch.sequence_ids = {0};
  batch.cu_seqlens = {0, ids.numel()};
  return batch;
}

inline at::Tensor all_logits(Model& model, const at::Tensor& ids, int64_t first_position = 0) {
  const torch::InferenceMode inference;
  DenseBackend backend;
  return model.logits(model.forward(single(ids, first_position), backend));
}

// `count` greedy tokens after `ids`, each from a pass over all tokens so far.
inline std::vector<int64_t> greedy(Model& model, std::vector<int64_t> ids, int64_t count) {
  const torch::InferenceMode inference;
  DenseBackend backend;
  const std::size_t prompt = ids.size();
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor hidden = model.forward(single(torch::tensor(ids, torch::kLong)), backend);
    ids.push_back(model.logits(hidden.slice(0, -1)).argmax(-1).item<int64_t>());
  }
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end()};
}

inline std::vector<int64_t> to_vector(const at::Tensor& ids) {
  const at::Tensor flat = ids.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

}  // namespace coppice::golden
