#include "coppice/ops/retention_attention.h"

#include <ATen/ops/empty.h>
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
                          const at::Tensor& log_beta, const at::Tensor& pressure,
                          std::span<const int64_t> cu_seqlens, double scale, int64_t squarings) {
  const at::ScalarType fade = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  // Finite, so that age 0 times it is 0.
  const at::Tensor finite = log_beta.to(fade).clamp_min(-1e30).contiguous();
  RetentionInput input{q.contiguous(), k.contiguous(), v.contiguous(), finite, cu_seqlens, scale};
  if (squarings > 0) input.pressure = pressure.to(fade).contiguous();
  input.squarings = squarings;
  return input;
}

struct RetentionFunction : torch::autograd::Function<RetentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& log_beta,
                            const at::Tensor& pressure, const std::vector<int64_t>& cu_seqlens,
                            double scale, int64_t squarings) {
    const RetentionInput input =
        make_input(q, k, v, log_beta, pressure, cu_seqlens, scale, squarings);
    const RetentionOutput output = has_retention_tiles(input) ? retention_forward_tiles(input)
                                                              : retention_forward_blocks(input);
    ctx->save_for_backward({q, k, v, log_beta, pressure, output.out, output.lse});
    ctx->saved_data["cu_seqlens"] = cu_seqlens;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["squarings"] = squarings;
    return output.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> cu_seqlens = ctx->saved_data["cu_seqlens"].toIntVector();
    const RetentionInput input =
        make_input(saved[0], saved[1], saved[2], saved[3], saved[4], cu_seqlens,
                   ctx->saved_data["scale"].toDouble(), ctx->saved_data["squarings"].toInt());
    const RetentionOutput output{saved[5], saved[6]};
    const at::Tensor given = gradients[0].contiguous();
    RetentionGradients to = has_retention_tiles(input)
                                ? retention_backward_tiles(input, output, given)
                                : retention_backward_blocks(input, output, given);
    if (to.pressure.defined()) to.pressure = to.pressure.to(saved[4].scalar_type());
    return {to.q, to.k, to.v, to.log_beta.to(saved[3].scalar_type()), to.pressure, {}, {}, {}};
  }
};

}  // namespace

at::Tensor retention_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                               double scale) {
  check_arguments(q, k, v, log_beta, cu_seqlens);
  const at::Tensor no_pressure = at::empty({0}, log_beta.options());
  return RetentionFunction::apply(q, k, v, log_beta, no_pressure,
                                  std::vector<int64_t>(cu_seqlens.begin(), cu_seqlens.end()), scale,
                                  int64_t{0});
}

at::Tensor cut_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& log_beta, const at::Tensor& pressure,
                         std::span<const int64_t> cu_seqlens, double scale, int64_t sharpness) {
  check_arguments(q, k, v, log_beta, cu_seqlens);
  if (pressure.dim() != 1 || pressure.size(0) != q.size(0) ||
      !at::isFloatingType(pressure.scalar_type()))
    fail_argument("cut attention: expected a pressure [{}] of a floating type, got {} {}",
                  q.size(0), fmt::join(pressure.sizes(), "x"),
                  at::toString(pressure.scalar_type()));
  check_sharpness(sharpness, "cut attention");
  return RetentionFunction::apply(q, k, v, log_beta, pressure,
                                  std::vector<int64_t>(cu_seqlens.begin(), cu_seqlens.end()), scale,
                                  squarings_of(sharpness));
}

}  // namespace coppice::ops
