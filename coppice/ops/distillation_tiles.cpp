#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "coppice/ops/distillation_kernels.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

const DistillKernels* kernels_for(at::ScalarType type) {
  if (type == at::kFloat) return float_distill_kernels();
  if (type == at::kBFloat16) return bfloat16_distill_kernels();
  return nullptr;
}

// One chunk on its way through the vocabulary.
class Pass final {
 public:
  Pass(const DistillChunk& chunk, const DistillKernels& kernels)
      : chunk_(chunk),
        kernels_(kernels),
        tokens_(chunk.student.size(0)),
        width_(chunk.student.size(1)),
        vocab_(chunk.head.size(0)),
        lanes_((tokens_ + 63) / 64 * 64),
        slices_((vocab_ + kDistillSlice - 1) / kDistillSlice) {}

  void run(const DistillOptions& options, bool with_gradient, DistillSums& sums) {
    const at::Tensor student = logits(chunk_.student, student_lse_);
    const at::Tensor teacher =
        chunk_.teacher.defined() ? logits(chunk_.teacher, teacher_lse_) : at::Tensor();
    const float* const z = student.const_data_ptr<float>();
    const int64_t* const targets = chunk_.targets.const_data_ptr<int64_t>();
    for (int64_t t = 0; t < tokens_; ++t)
      sums.ntp += student_lse_[t] * std::log(2.0) - z[targets[t] * lanes_ + t];
    if (!teacher.defined() && !with_gradient) return;
    std::vector<int64_t> padded(lanes_, -1);
    std::copy_n(targets, tokens_, padded.begin());
    const at::Tensor kl = at::empty({slices_, lanes_}, at::kFloat);
    const at::Tensor parts =
        with_gradient ? at::empty({slices_, width_, lanes_}, at::kFloat) : at::Tensor();
    for_each_slice([&](int64_t s, const DistillSlice& slice) {
      kernels_.slopes(
          slice,
          {z, teacher.defined() ? teacher.const_data_ptr<float>() : nullptr, student_lse_.data(),
           teacher_lse_.data(), padded.data(), static_cast<float>(options.kl_weight),
           static_cast<float>(options.ntp_weight), kl.data_ptr<float>() + s * lanes_,
           with_gradient ? parts.data_ptr<float>() + s * width_ * lanes_ : nullptr});
    });
    for (int64_t s = 0; s < slices_; ++s)
      for (int64_t t = 0; t < tokens_; ++t)
        sums.kl += kl.const_data_ptr<float>()[s * lanes_ + t] * std::log(2.0);
    if (with_gradient) sums.gradient = add_slices(parts);
  }

 private:
  template <typename Fn>
  void for_each_slice(const Fn& fn) const {
    parallel_for(0, slices_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s)
        fn(s, DistillSlice{s * kDistillSlice, std::min((s + 1) * kDistillSlice, vocab_),
                           chunk_.head.const_data_ptr(), width_, lanes_});
    });
  }

  // -> [V, lanes]; lse [lanes]: log2 of the sum of e^logit.
  at::Tensor logits(const at::Tensor& hidden, std::vector<float>& lse) const {
    const at::Tensor units = at::empty({lanes_ * width_ * kernels_.element_bytes}, at::kByte);
    kernels_.pack(hidden.const_data_ptr(), tokens_, width_, units.data_ptr());
    const at::Tensor result = at::empty({vocab_, lanes_}, at::kFloat);
    const at::Tensor state = at::empty({slices_, 2, lanes_}, at::kFloat);
    for_each_slice([&](int64_t s, const DistillSlice& slice) {
      float* const its = state.data_ptr<float>() + s * 2 * lanes_;
      kernels_.logits(slice, units.const_data_ptr(), result.data_ptr<float>(), {its, its + lanes_});
    });
    lse.resize(lanes_);
    for (int64_t t = 0; t < lanes_; ++t) {
      const auto value = [&](int64_t s, int64_t part) {
        return state.const_data_ptr<float>()[(s * 2 + part) * lanes_ + t];
      };
      float max = value(0, 0);
      for (int64_t s = 1; s < slices_; ++s) max = std::max(max, value(s, 0));
      double sum = 0.0;
      for (int64_t s = 0; s < slices_; ++s) sum += value(s, 1) * std::exp2(value(s, 0) - max);
      lse[t] = static_cast<float>(max + std::log2(sum));
    }
    return result;
  }

  // parts [slices, C, lanes] -> [tokens, C], added in their order.
  at::Tensor add_slices(const at::Tensor& parts) const {
    const float* const from = parts.const_data_ptr<float>();
    at::Tensor result = at::empty({tokens_, width_}, at::kFloat);
    float* const to = result.data_ptr<float>();
    parallel_for(0, width_, 16, [&](int64_t begin, int64_t end) {
      std::vector<float> row(lanes_);
      for (int64_t c = begin; c < end; ++c) {
        std::fill(row.begin(), row.end(), 0.0F);
        for (int64_t s = 0; s < slices_; ++s)
          for (int64_t t = 0; t < lanes_; ++t) row[t] += from[(s * width_ + c) * lanes_ + t];
        for (int64_t t = 0; t < tokens_; ++t) to[t * width_ + c] = row[t];
      }
    });
    return result;
  }

  const DistillChunk& chunk_;
  const DistillKernels& kernels_;
  const int64_t tokens_, width_, vocab_, lanes_, slices_;
  std::vector<float> student_lse_, teacher_lse_;
};

}  // namespace

bool has_distill_tiles(const at::Tensor& head) {
  if (!head.device().is_cpu() || head.size(0) == 0) return false;
  const DistillKernels* kernels = kernels_for(head.scalar_type());
  return kernels != nullptr && head.size(1) % kernels->per_unit == 0;
}

void distill_chunk_tiles(const DistillChunk& chunk, const DistillOptions& options,
                         bool with_gradient, DistillSums& sums) {
  Pass(chunk, *kernels_for(chunk.head.scalar_type())).run(options, with_gradient, sums);
}

}  // namespace coppice::ops
