#include "coppice/ops/paged_attention_reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "coppice/core/error.h"
#include "coppice/ops/attention_reference.h"

namespace coppice::ops {
namespace {

// A row of a pool [blocks, 16, ...] in row order: [L, ...].
at::Tensor gather(const at::Tensor& pool, const at::Tensor& blocks, int64_t length) {
  return pool.index_select(0, blocks).flatten(0, 1).narrow(0, 0, length);
}

at::Tensor row_attention(const PagedTensors& pool, const PagedRow& row, const at::Tensor& q,
                         double scale, int64_t window) {
  const int64_t num_blocks = (row.length + kSlots - 1) / kSlots;
  const at::Tensor blocks =
      at::from_blob(const_cast<int32_t*>(row.blocks), {num_blocks}, at::kInt).to(q.device());
  const at::ScalarType dtype = q.scalar_type();
  const at::Tensor keys = gather(pool.keys.transpose(1, 2), blocks, row.length).to(dtype);
  const at::Tensor values = gather(pool.values, blocks, row.length).to(dtype);
  at::Tensor visible = causal_mask(row.num_tokens, row.length, 0, q.device());
  if (window > 0) {
    const at::Tensor positions = gather(pool.positions, blocks, row.length);
    const at::Tensor own = positions.slice(0, row.length - row.num_tokens).unsqueeze(1);
    visible = visible.logical_and((own - positions.unsqueeze(0)) < window);
  }
  return attention_reference(q, keys.unsqueeze(1), values.unsqueeze(1), scale, visible);
}

}  // namespace

at::Tensor paged_attention_reference(const PagedTensors& pool, std::span<const PagedRow> rows,
                                     const at::Tensor& q, int64_t group, double scale,
                                     int64_t window) {
  const bool wide = q.scalar_type() == at::kDouble || pool.keys.scalar_type() == at::kDouble;
  const at::Tensor exact = q.to(wide ? at::kDouble : at::kFloat);
  at::Tensor out = at::zeros(q.sizes(), exact.options());
  for (const PagedRow& row : rows) {
    if (row.length < row.num_tokens)
      fail_argument("paged attention: a row of {} entries cannot end in {} new tokens", row.length,
                    row.num_tokens);
    if (row.num_tokens == 0) continue;
    const auto part = [&](const at::Tensor& t) {
      return t.narrow(0, row.first_token, row.num_tokens).narrow(1, row.kv_head * group, group);
    };
    part(out).copy_(row_attention(pool, row, part(exact).contiguous(), scale, window));
  }
  return out.to(q.scalar_type());
}

}  // namespace coppice::ops
