// The quality term of the training loss: the student, whose cache fades, against the frozen teacher
// and against the text itself.
//
//   p = softmax(W h_teacher), q = softmax(W h_student), full vocabulary, temperature 1
//   L = kl_weight mean KL(p || q) + ntp_weight mean -log q[target]                (docs/maths.md
//   17)
//
// Means are over the tokens that have a target, so both parts look at the same predictions.
// Source: arXiv:2605.09649, training objective. Differs from the published code: the parts are
// added, not averaged; the KL mask is that of the predicted token; nothing is lost at the border of
// a chunk; probabilities are float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace coppice::ops {

struct DistillOptions {
  int64_t chunk_tokens = 256;  // logits exist for this many tokens at a time
  double kl_weight = 1.0;      // 0: the teacher's logits are not computed, and kl is 0
  double ntp_weight = 1.0;
};

struct DistillResult {
  at::Tensor loss;  // scalar float32 (float64 for float64 input), carries the gradient
  double kl = 0.0;  // means over `tokens`, unweighted, in nats
  double ntp = 0.0;
  int64_t tokens = 0;  // rows with a target; none: loss, kl and ntp are 0
};

// student_hidden and teacher_hidden [N, C], what goes into the head (after the final norm);
// head_weight [V, C] of the frozen, bias-free head, same dtype: float32, bfloat16 or float64.
// targets [N] int64: the token that row n predicts, or -100 where it carries no loss.
// The gradient of student_hidden is computed here, chunk by chunk, when one is recorded; head and
// teacher get none. teacher_hidden may be undefined when kl_weight is 0.
// On a CPU with AVX-512 our own products: logits and probabilities in float32, two of [chunk, V],
// and the same bits for any number of threads; with bfloat16 their gradient is rounded to it before
// its product with the head. Elsewhere ATen operations, whose bfloat16 products round the logits
// too. Throws kInvalidArgument on shapes that disagree and targets outside [0, V) other than -100.
DistillResult distill_loss(const at::Tensor& student_hidden, const at::Tensor& teacher_hidden,
                           const at::Tensor& head_weight, const at::Tensor& targets,
                           const DistillOptions& options = {});

// The same over all tokens at once, [N, V], differentiated by autograd.
DistillResult distill_loss_reference(const at::Tensor& student_hidden,
                                     const at::Tensor& teacher_hidden,
                                     const at::Tensor& head_weight, const at::Tensor& targets,
                                     const DistillOptions& options = {});

}  // namespace coppice::ops
