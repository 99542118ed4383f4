#include "coppice/ops/distillation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/ops/distillation_kernels.h"

namespace coppice::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kNoTarget = -100;

at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void check_arguments(const at::Tensor& student, const at::Tensor& teacher, const at::Tensor& head,
                     const at::Tensor& targets, const DistillOptions& options) {
  const bool with_teacher = options.kl_weight != 0.0;
  if (student.dim() != 2 || head.dim() != 2 || student.size(1) != head.size(1) ||
      (with_teacher && (!teacher.defined() || teacher.sizes() != student.sizes())))
    fail_argument(
        "distillation: expected hidden states [N, C] of student and teacher and a head [V, C], got "
        "{}, {} and {}",
        fmt::join(student.sizes(), "x"),
        teacher.defined() ? fmt::format("{}", fmt::join(teacher.sizes(), "x")) : "none",
        fmt::join(head.sizes(), "x"));
  if (student.scalar_type() != head.scalar_type() ||
      (with_teacher && teacher.scalar_type() != head.scalar_type()))
    fail_argument("distillation: expected the head's type {} for both hidden states, got {} and {}",
                  at::toString(head.scalar_type()), at::toString(student.scalar_type()),
                  teacher.defined() ? at::toString(teacher.scalar_type()) : "none");
  if (targets.dim() != 1 || targets.size(0) != student.size(0) ||
      targets.scalar_type() != at::kLong)
    fail_argument("distillation: expected {} int64 targets, got {} {}", student.size(0),
                  fmt::join(targets.sizes(), "x"), at::toString(targets.scalar_type()));
  const at::Tensor wrong = ((targets < 0) & (targets != kNoTarget)) | (targets >= head.size(0));
  if (wrong.any().item<bool>())
    fail_argument("distillation: targets must be -100 or below {}, got {}", head.size(0),
                  targets.masked_select(wrong)[0].item<int64_t>());
  if (options.chunk_tokens < 1)
    fail_argument("distillation: expected at least 1 token a chunk, got {}", options.chunk_tokens);
}

at::Tensor log_probabilities(const at::Tensor& hidden, const at::Tensor& head) {
  return at::log_softmax(at::matmul(hidden, head.t()).to(wide_type(hidden)), -1);
}

void distill_chunk_blocks(const DistillChunk& chunk, const DistillOptions& options,
                          bool with_gradient, DistillSums& sums) {
  const at::Tensor log_q = log_probabilities(chunk.student, chunk.head);
  const at::Tensor index = chunk.targets.unsqueeze(1);
  sums.ntp -= log_q.gather(1, index).sum().item<double>();
  // d KL / d logits = q - p, d NTP / d logits = q - onehot
  at::Tensor slope;
  if (with_gradient) slope = log_q.exp() * (options.kl_weight + options.ntp_weight);
  if (chunk.teacher.defined()) {
    const at::Tensor log_p = log_probabilities(chunk.teacher, chunk.head);
    const at::Tensor p = log_p.exp();
    sums.kl += (p * (log_p - log_q)).sum().item<double>();
    if (with_gradient) slope.sub_(p, options.kl_weight);
  }
  if (!with_gradient) return;
  slope.scatter_add_(1, index, at::zeros_like(index, slope.options()) - options.ntp_weight);
  sums.gradient =
      at::matmul(slope.to(chunk.head.scalar_type()), chunk.head).to(slope.scalar_type());
}

// The gradient is known once the loss is: backward scales it.
struct KnownGradient : torch::autograd::Function<KnownGradient> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& /*student*/,
                            const at::Tensor& loss, const at::Tensor& gradient) {
    ctx->save_for_backward({gradient});
    return loss.clone();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& given) {
    const at::Tensor gradient = ctx->get_saved_variables()[0];
    const at::Tensor factor = given[0].to(gradient.scalar_type());
    return {gradient * factor, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

DistillResult distill_loss_reference(const at::Tensor& student, const at::Tensor& teacher,
                                     const at::Tensor& head, const at::Tensor& targets,
                                     const DistillOptions& options) {
  check_arguments(student, teacher, head, targets, options);
  const at::Tensor rows = (targets != kNoTarget).nonzero().squeeze(1);
  DistillResult result;
  result.tokens = rows.size(0);
  result.loss = at::zeros({}, student.options().dtype(wide_type(student)));
  if (result.tokens == 0) return result;
  const at::Tensor log_q = log_probabilities(student.index_select(0, rows), head);
  const at::Tensor index = targets.index_select(0, rows).unsqueeze(1);
  const at::Tensor ntp = -log_q.gather(1, index).mean();
  result.ntp = ntp.item<double>();
  result.loss = ntp * options.ntp_weight;
  if (options.kl_weight == 0.0) return result;
  const at::Tensor log_p = log_probabilities(teacher.index_select(0, rows), head);
  const at::Tensor kl = (log_p.exp() * (log_p - log_q)).sum(1).mean();
  result.kl = kl.item<double>();
  result.loss = result.loss + kl * options.kl_weight;
  return result;
}

DistillResult distill_loss(const at::Tensor& student, const at::Tensor& teacher,
                           const at::Tensor& head, const at::Tensor& targets,
                           const DistillOptions& options) {
  check_arguments(student, teacher, head, targets, options);
  const bool with_gradient = c10::GradMode::is_enabled() && student.requires_grad();
  const c10::NoGradGuard no_gradient;
  const at::Tensor rows = (targets != kNoTarget).nonzero().squeeze(1);
  DistillResult result;
  result.tokens = rows.size(0);
  at::Tensor gradient = with_gradient ? at::zeros_like(student) : at::Tensor();
  const double share = 1.0 / static_cast<double>(std::max<int64_t>(result.tokens, 1));
  const at::Tensor weight = head.contiguous();
  const bool tiles = has_distill_tiles(weight);
  DistillSums sums;
  for (int64_t begin = 0; begin < result.tokens; begin += options.chunk_tokens) {
    const at::Tensor some = rows.slice(0, begin, begin + options.chunk_tokens);
    const DistillChunk chunk{
        student.index_select(0, some),
        options.kl_weight != 0.0 ? teacher.index_select(0, some) : at::Tensor(), weight,
        targets.index_select(0, some)};
    (tiles ? distill_chunk_tiles : distill_chunk_blocks)(chunk, options, with_gradient, sums);
    if (with_gradient)
      gradient.index_copy_(0, some, (sums.gradient * share).to(student.scalar_type()));
  }
  result.kl = sums.kl * share;
  result.ntp = sums.ntp * share;
  result.loss = at::zeros({}, student.options().dtype(wide_type(student)));
  result.loss.fill_(options.kl_weight * result.kl + options.ntp_weight * result.ntp);
  if (!with_gradient) return result;
  const c10::AutoGradMode recording(true);
  result.loss = KnownGradient::apply(student, result.loss, gradient);
  return result;
}

}  // namespace coppice::ops
