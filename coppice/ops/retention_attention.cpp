#include "coppice/ops/retention_attention.h"

#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/documents.h"
#include "coppice/ops/retention_attention_kernels.h"

namespace coppice::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_arguments(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens) {
  if (q.dim() != 3 || k.dim() != 3 || v.sizes() != k.sizes() || q.size(0) != k.size(0) ||
      q.size(2) != k.size(2) || k.size(1) == 0 || q.size(1) % k.size(1) != 0)
    fail_argument(
        "retention attention: expected q [N, Hq, D] and k, v [N, Hkv, D] with Hq a multiple of "
        "Hkv, got {}, {} and {}",
        fmt::join(q.sizes(), "x"), fmt::join(k.sizes(), "x"), fmt::join(v.sizes(), "x"));
  if (log_beta.dim() != 2 || log_beta.size(0) != k.size(0) || log_beta.size(1) != k.size(1))
    fail_argument("retention attention: expected log beta [{}, {}], got {}", k.size(0), k.size(1),
                  fmt::join(log_beta.sizes(), "x"));
  const bool one_type = at::isFloatingType(q.scalar_type()) && k.scalar_type() == q.scalar_type() &&
                        v.scalar_type() == q.scalar_type();
  const at::ScalarType fade = log_beta.scalar_type();
  if (!one_type || (fade != at::kFloat && fade != at::kDouble))
    fail_argument(
        "retention attention: expected q, k, v of one floating type and log beta float32 or "
        "float64, got {}, {}, {} and {}",
        at::toString(q.scalar_type()), at::toString(k.scalar_type()), at::toString(v.scalar_type()),
        at::toString(fade));
  check_documents(cu_seqlens, q.size(0), "retention attention");
}

RetentionInput make_input(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                          double scale) {
  const at::ScalarType fade = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  // Finite, so that age 0 times it is 0.
  const at::Tensor finite = log_beta.to(fade).clamp_min(-1e30).contiguous();
  return {q.contiguous(), k.contiguous(), v.contiguous(), finite, cu_seqlens, scale};
}

struct RetentionFunction : torch::autograd::Function<RetentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& log_beta,
                            const std::vector<int64_t>& cu_seqlens, double scale) {
    const RetentionInput input = make_input(q, k, v, log_beta, cu_seqlens, scale);
    const RetentionOutput output = has_retention_tiles(input) ? retention_forward_tiles(input)
                                                              : retention_forward_blocks(input);
    ctx->save_for_backward({q, k, v, log_beta, output.out, output.lse});
    ctx->saved_data["cu_seqlens"] = cu_seqlens;
    ctx->saved_data["scale"] = scale;
    return output.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> cu_seqlens = ctx->saved_data["cu_seqlens"].toIntVector();
    const RetentionInput input = make_input(saved[0], saved[1], saved[2], saved[3], cu_seqlens,
                                            ctx->saved_data["scale"].toDouble());
    const RetentionOutput output{saved[4], saved[5]};
    const at::Tensor given = gradients[0].contiguous();
    const RetentionGradients to = has_retention_tiles(input)
                                      ? retention_backward_tiles(input, output, given)
                                      : retention_backward_blocks(input, output, given);
    return {to.q, to.k, to.v, to.log_beta.to(saved[3].scalar_type()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor retention_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                               double scale) {
  check_arguments(q, k, v, log_beta, cu_seqlens);
  return RetentionFunction::apply(
      q, k, v, log_beta, std::vector<int64_t>(cu_seqlens.begin(), cu_seqlens.end()), scale);
}

}  // namespace coppice::ops
