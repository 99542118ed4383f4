#include "coppice/ops/capacity.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/capacity_lanes.h"
#include "coppice/ops/documents.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_arguments(const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                     double budget) {
  if (log_beta.dim() != 3 ||
      (log_beta.scalar_type() != at::kFloat && log_beta.scalar_type() != at::kDouble))
    fail_argument("capacity: expected log beta [N, L, Hkv] float32 or float64, got {} {}",
                  fmt::join(log_beta.sizes(), "x"), at::toString(log_beta.scalar_type()));
  if (!std::isfinite(budget) || budget <= 0.0)
    fail_argument("capacity: expected a budget above 0 entries per row, got {}", budget);
  check_documents(cu_seqlens, log_beta.size(0), "capacity");
}

// log beta and beta - 1 of all rows, in blocks of lanes: [blocks, N, lanes]. Lanes that stand for
// no row keep nothing.
template <typename T>
struct Tables {
  at::Tensor log_beta, decay;
  int64_t rows, blocks, tokens;

  explicit Tables(const at::Tensor& source)
      : rows(source.size(1) * source.size(2)),
        blocks((rows + kLanes - 1) / kLanes),
        tokens(source.size(0)) {
    log_beta = at::empty({blocks, tokens, kLanes}, source.options());
    decay = at::empty_like(log_beta);
    const T* from = source.const_data_ptr<T>();
    T* const to = log_beta.data_ptr<T>();
    T* const to_decay = decay.data_ptr<T>();
    parallel_for(0, blocks * tokens, 256, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at)
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          const int64_t row = at / tokens * kLanes + lane;
          const T value = row < rows ? from[at % tokens * rows + row] : -kGone;
          to[at * kLanes + lane] = std::max(value, -kGone);
          to_decay[at * kLanes + lane] = std::expm1(value);
        }
    });
  }

  CapacityRows<T> of(int64_t block, int64_t first, int64_t last) const {
    const int64_t at = (block * tokens + first) * kLanes;
    return {last - first, log_beta.const_data_ptr<T>() + at, decay.const_data_ptr<T>() + at};
  }

  static constexpr int64_t kLanes = kCapacityLanes<T>;
  static constexpr T kGone = T(1e30);  // finite, so that age 0 times it is 0
};

// Positions begin .. begin + 63 (or the last) of a document that starts at `first`.
struct Piece {
  int64_t first, last, begin;
};

std::vector<Piece> pieces_of(std::span<const int64_t> cu_seqlens) {
  std::vector<Piece> pieces;
  for (std::size_t b = 0; b + 1 < cu_seqlens.size(); ++b)
    for (int64_t t = 0; t < cu_seqlens[b + 1] - cu_seqlens[b]; t += kCapacityBlock)
      pieces.push_back({cu_seqlens[b], cu_seqlens[b + 1], t});
  return pieces;
}

struct Loss {
  double value = 0.0;
  // d loss / d S: [N] for kGlobal, [blocks, N, lanes] for kLocal.
  at::Tensor weight;
};

// c at one position with `room` = p + 1 - M > 0, and its slope.
struct Excess {
  double value = 0.0, slope = 0.0;
  Excess(double held, double budget, double rows, double room) {
    if (room <= 0.0 || held <= budget * rows) return;
    value = (held - budget * rows) / (rows * room);
    slope = 1.0 / (rows * room);
  }
};

template <typename T>
Loss forward_lanes(const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens, double budget,
                   CapacityScope scope) {
  const Tables<T> tables(log_beta);
  constexpr int64_t kLanes = Tables<T>::kLanes;
  const bool global = scope == CapacityScope::kGlobal;
  const int64_t rows = tables.rows, tokens = tables.tokens;
  const double share =
      1.0 / static_cast<double>(std::max<int64_t>(tokens * (global ? 1 : rows), 1));
  Loss loss;
  loss.weight = global ? at::empty({tokens}, log_beta.options())
                       : at::zeros({tables.blocks, tokens, kLanes}, log_beta.options());
  T* const weight = loss.weight.data_ptr<T>();
  const std::vector<Piece> pieces = pieces_of(cu_seqlens);
  std::vector<double> sums(pieces.size(), 0.0);  // added up in their order below
  const CapacityKernels<T>& kernels = capacity_kernels<T>();
  const auto run = [&](std::size_t p) {
    const Piece& piece = pieces[p];
    const int64_t count = std::min(kCapacityBlock, piece.last - piece.first - piece.begin);
    double all[kCapacityBlock] = {};
    T held[kCapacityBlock * kLanes];
    const auto room = [&](int64_t t) { return static_cast<double>(piece.begin + t + 1) - budget; };
    for (int64_t block = 0; block < tables.blocks; ++block) {
      std::fill_n(held, kCapacityBlock * kLanes, T(0));
      kernels.occupancy(tables.of(block, piece.first, piece.last), piece.begin, held);
      for (int64_t t = 0; t < count; ++t)
        for (int64_t lane = 0; lane < std::min(kLanes, rows - block * kLanes); ++lane) {
          const double here = held[t * kLanes + lane];
          all[t] += here;
          if (global) continue;
          const Excess excess(here, budget, 1.0, room(t));
          sums[p] += excess.value;
          weight[(block * tokens + piece.first + piece.begin + t) * kLanes + lane] =
              static_cast<T>(excess.slope * share);
        }
    }
    for (int64_t t = 0; global && t < count; ++t) {
      const Excess excess(all[t], budget, static_cast<double>(rows), room(t));
      sums[p] += excess.value;
      weight[piece.first + piece.begin + t] = static_cast<T>(excess.slope * share);
    }
  };
  parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) run(static_cast<std::size_t>(p));
  });
  for (const double sum : sums) loss.value += sum * share;
  return loss;
}

template <typename T>
at::Tensor backward_lanes(const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                          const at::Tensor& weight) {
  const Tables<T> tables(log_beta);
  constexpr int64_t kLanes = Tables<T>::kLanes;
  const int64_t rows = tables.rows, tokens = tables.tokens;
  const bool global = weight.dim() == 1;
  at::Tensor result = at::empty_like(log_beta);
  T* const to = result.data_ptr<T>();
  const T* const weights = weight.const_data_ptr<T>();
  const std::vector<Piece> pieces = pieces_of(cu_seqlens);
  const CapacityKernels<T>& kernels = capacity_kernels<T>();
  const auto run = [&](const Piece& piece, int64_t block) {
    T slope[kCapacityBlock * kLanes];
    const T* its = weights + (global ? piece.first : (block * tokens + piece.first) * kLanes);
    kernels.slope(tables.of(block, piece.first, piece.last), piece.begin, its, global ? 1 : kLanes,
                  slope);
    const int64_t count = std::min(kCapacityBlock, piece.last - piece.first - piece.begin);
    for (int64_t t = 0; t < count; ++t)
      std::copy_n(slope + t * kLanes, std::min(kLanes, rows - block * kLanes),
                  to + (piece.first + piece.begin + t) * rows + block * kLanes);
  };
  const int64_t count = static_cast<int64_t>(pieces.size()) * tables.blocks;
  parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run(pieces[i / tables.blocks], i % tables.blocks);
  });
  return result;
}

struct CapacityFunction : torch::autograd::Function<CapacityFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& log_beta,
                            const std::vector<int64_t>& cu_seqlens, double budget, bool global) {
    const auto scope = global ? CapacityScope::kGlobal : CapacityScope::kLocal;
    const at::Tensor source = log_beta.contiguous();
    const Loss loss = source.scalar_type() == at::kDouble
                          ? forward_lanes<double>(source, cu_seqlens, budget, scope)
                          : forward_lanes<float>(source, cu_seqlens, budget, scope);
    ctx->save_for_backward({log_beta, loss.weight});
    ctx->saved_data["cu_seqlens"] = cu_seqlens;
    return at::zeros({}, log_beta.options()).fill_(loss.value);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& given) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> cu_seqlens = ctx->saved_data["cu_seqlens"].toIntVector();
    const at::Tensor source = saved[0].contiguous();
    const at::Tensor slope = source.scalar_type() == at::kDouble
                                 ? backward_lanes<double>(source, cu_seqlens, saved[1])
                                 : backward_lanes<float>(source, cu_seqlens, saved[1]);
    return {slope * given[0], at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor capacity_loss_reference(const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                                   double budget, CapacityScope scope) {
  check_arguments(log_beta, cu_seqlens, budget);
  const int64_t rows = log_beta.size(1) * log_beta.size(2);
  const at::Tensor flat = log_beta.reshape({log_beta.size(0), rows});
  at::Tensor sum = at::zeros({}, log_beta.options());
  for (std::size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    const int64_t length = cu_seqlens[b + 1] - cu_seqlens[b];
    const at::Tensor place = at::arange(length, log_beta.options());
    const at::Tensor age = place.unsqueeze(1) - place.unsqueeze(0);
    std::vector<at::Tensor> occupancy;  // of each row, [S, 1]
    for (int64_t r = 0; r < rows; ++r) {
      const at::Tensor fade = flat.slice(0, cu_seqlens[b], cu_seqlens[b + 1]).select(1, r);
      const at::Tensor held = at::exp(age.clamp_min(0) * fade).masked_fill(age < 0, 0.0);
      occupancy.push_back(held.sum(1, /*keepdim=*/true));
    }
    if (rows == 0 || length == 0) continue;
    at::Tensor held = at::cat(occupancy, 1);
    if (scope == CapacityScope::kGlobal) held = held.mean(1, /*keepdim=*/true);
    const at::Tensor room = (place + 1.0 - budget).unsqueeze(1);
    const at::Tensor excess = at::relu(held - budget) / room.masked_fill(room <= 0, 1.0);
    sum = sum + excess.masked_fill(room <= 0, 0.0).sum();
  }
  const int64_t elements = log_beta.size(0) * (scope == CapacityScope::kGlobal ? 1 : rows);
  return sum / static_cast<double>(std::max<int64_t>(elements, 1));
}

at::Tensor capacity_loss(const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                         double budget, CapacityScope scope) {
  if (!log_beta.device().is_cpu())
    return capacity_loss_reference(log_beta, cu_seqlens, budget, scope);
  check_arguments(log_beta, cu_seqlens, budget);
  return CapacityFunction::apply(log_beta,
                                 std::vector<int64_t>(cu_seqlens.begin(), cu_seqlens.end()), budget,
                                 scope == CapacityScope::kGlobal);
}

}  // namespace coppice::ops
