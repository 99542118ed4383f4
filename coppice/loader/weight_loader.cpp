#include "coppice/loader/weight_loader.h"

#include <ATen/core/Tensor.h>

#include <cstdlib>

#include "coppice/core/error.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/ops/dequantize.h"

namespace coppice {
namespace {

constexpr std::size_t kMaxProblems = 64;
constexpr int64_t kMaxZeroBytes = int64_t{1} << 30;

bool computed_by_models(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn_rot_embd");
}

}  // namespace

StoredTensor WeightLoader::take(const std::string& name, const std::vector<int64_t>& shape) {
  const std::optional<TensorInfo> info = checkpoint_.tensor_info(name);
  if (!info) {
    return note(fmt::format("{} is missing; expected [{}]", name, fmt::join(shape, ", ")), name,
                shape);
  }
  taken_.insert(name);
  if (info->shape != shape) {
    return note(fmt::format("{} has the shape [{}]; expected [{}]", name,
                            fmt::join(info->shape, ", "), fmt::join(shape, ", ")),
                name, shape);
  }
  try {
    return *checkpoint_.find(name);
  } catch (const Error& error) {
    return note(error.what(), name, shape);
  }
}

at::Tensor WeightLoader::take_float(const std::string& name, const std::vector<int64_t>& shape) {
  return ops::dequantize(take(name, shape));
}

std::optional<StoredTensor> WeightLoader::take_optional(const std::string& name,
                                                        const std::vector<int64_t>& shape) {
  if (!checkpoint_.contains(name)) return std::nullopt;
  return take(name, shape);
}

StoredTensor WeightLoader::take_head(const std::string& head, const std::string& embedding,
                                     bool tied, const std::vector<int64_t>& shape) {
  if (tied) {
    if (checkpoint_.contains(head)) ignore(head);
    return take(embedding, shape);
  }
  if (checkpoint_.contains(head)) return take(head, shape);
  return note(fmt::format("{} is missing, although tie_word_embeddings is false", head), head,
              shape);
}

StoredTensor WeightLoader::note(std::string problem, const std::string& name,
                                const std::vector<int64_t>& shape) {
  problems_.push_back(std::move(problem));
  if (problems_.size() >= kMaxProblems) fail_now("stopped here: there may be more");
  int64_t bytes = sizeof(float);
  for (const int64_t dim : shape) {
    if (dim <= 0 || __builtin_mul_overflow(bytes, dim, &bytes) || bytes > kMaxZeroBytes) {
      fail_now("stopped here: that tensor is too large to go on without");
    }
  }
  // calloc: pages that nobody reads cost nothing.
  const std::shared_ptr<void> zeros(std::calloc(1, static_cast<std::size_t>(bytes)), std::free);
  if (!zeros) fail_now("stopped here: not enough memory to go on without that tensor");
  StoredTensor tensor;
  tensor.name = name;
  tensor.type = StorageType::kF32;
  tensor.shape = shape;
  tensor.bytes = {static_cast<const std::byte*>(zeros.get()), static_cast<std::size_t>(bytes)};
  tensor.owner = zeros;
  return tensor;
}

void WeightLoader::fail_now(const std::string& more) const {
  std::string text = fmt::format("{}: the weights do not fit the model:", checkpoint_.path());
  for (const std::string& problem : problems_) text += "\n  " + problem;
  if (!more.empty()) text += "\n  " + more;
  throw Error(ErrorCode::kInvalidArgument, text);
}

void WeightLoader::finish() const {
  std::vector<std::string> unexpected;
  for (const std::string& name : checkpoint_.names()) {
    if (!taken_.contains(name) && !computed_by_models(name)) unexpected.push_back(name);
  }
  if (problems_.empty() && unexpected.empty()) return;
  std::string more;
  for (std::size_t i = 0; i < unexpected.size() && i < kMaxProblems; ++i) {
    more += fmt::format("{}{} is not part of the model", i == 0 ? "" : "\n  ", unexpected[i]);
  }
  if (unexpected.size() > kMaxProblems) {
    more += fmt::format("\n  and {} more are not", unexpected.size() - kMaxProblems);
  }
  fail_now(more);
}

}  // namespace coppice
