#include "coppice/ops/budget_pressure.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/documents.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kLogRange = 34.5;  // of the pressure: e^-34.5 to e^34.5, 1e15

// Positions begin .. end - 1 of a document whose tokens start at `first`; ages count from `anchor`.
struct Block {
  int64_t first, begin, end, anchor;
  double budget;
};

std::vector<Block> blocks_of(std::span<const int64_t> cu_seqlens, std::span<const double> budgets) {
  std::vector<Block> blocks;
  for (std::size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    const int64_t length = cu_seqlens[b + 1] - cu_seqlens[b];
    for (int64_t t = 0; t < length; t += kPressureBlock)
      blocks.push_back({cu_seqlens[b], t, std::min(t + kPressureBlock, length),
                        std::min(t + kPressureBlock / 2, length - 1), budgets[b]});
  }
  return blocks;
}

// 1 / (1 + y) of an entry.
template <typename T>
[[gnu::always_inline]] inline T left_of(T faded, T pressure, int64_t squarings) {
  T y = faded * pressure;
  for (int64_t s = 0; s < squarings; ++s) y *= y;
  return T(1) / (T(1) + y);
}

// Sums over the entries of a block at one pressure.
struct Sums {
  double held = 0.0;
  double slope = 0.0;  // of y / (1 + y)^2: held falls by sharpness times this per ln u
};

// faded[j] = age x |log beta|. Lanes of partial sums, so that the compiler may use vectors.
template <typename T>
Sums sum_over(const std::vector<T>& faded, T pressure, int64_t squarings) {
  constexpr std::size_t kLanes = 16;
  T held[kLanes] = {}, slope[kLanes] = {};
  Sums sums;
  for (std::size_t j = 0; j < faded.size();) {
    // Float sums stay exact enough over a stretch.
    const std::size_t end = std::min(faded.size(), j + 256 * kLanes);
    for (; j + kLanes <= end; j += kLanes)
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const T left = left_of(faded[j + lane], pressure, squarings);
        held[lane] += left;
        slope[lane] += left - left * left;  // y / (1 + y)^2, whatever y is
      }
    for (; j < end; ++j) {
      const T left = left_of(faded[j], pressure, squarings);
      held[0] += left;
      slope[0] += left - left * left;
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums.held += held[lane];
      sums.slope += slope[lane];
      held[lane] = slope[lane] = 0;
    }
  }
  return sums;
}

template <typename T>
std::vector<T> faded_entries(const T* log_beta, const Block& block, int64_t rows) {
  std::vector<T> faded(static_cast<std::size_t>((block.anchor + 1) * rows));
  for (int64_t i = 0; i <= block.anchor; ++i) {
    const T* const from = log_beta + (block.first + i) * rows;
    const auto age = static_cast<T>(block.anchor - i);
    for (int64_t r = 0; r < rows; ++r)
      faded[static_cast<std::size_t>(i * rows + r)] = -from[r] * age;
  }
  return faded;
}

// Newton's method on ln u, kept inside a bracket.
template <typename T>
T solve(const T* log_beta, const Block& block, int64_t rows, int64_t squarings) {
  if (static_cast<double>(block.anchor + 1) <= block.budget) return T(0);
  const std::vector<T> faded = faded_entries(log_beta, block, rows);
  const double target = block.budget * static_cast<double>(rows);
  const double close = target * (sizeof(T) == 4 ? 1e-6 : 1e-14);
  double low = -kLogRange, high = kLogRange, at = 0.0;
  for (int step = 0; step < 100 && high - low > 1e-14; ++step) {
    const Sums sums = sum_over(faded, static_cast<T>(std::exp(at)), squarings);
    const double over = sums.held - target;
    if (std::abs(over) <= close) break;
    (over > 0 ? low : high) = at;
    const double next =
        at + over / (static_cast<double>(int64_t{1} << squarings) * std::max(sums.slope, 1e-300));
    at = next > low && next < high ? next : 0.5 * (low + high);
  }
  return static_cast<T>(std::exp(at));
}

// Adds the block's share of the gradient: held(u, log beta) = target ties the two, and
// d held / d ln u and d held / d ln |log beta_j| are the same terms, summed and single.
template <typename T>
void add_gradient(const T* log_beta, const Block& block, int64_t rows, int64_t squarings,
                  T pressure, double given, double* to) {
  if (pressure == T(0) || given == 0.0) return;
  const std::vector<T> faded = faded_entries(log_beta, block, rows);
  const double all = sum_over(faded, pressure, squarings).slope;
  if (!(all > 0)) return;
  const double factor = given * static_cast<double>(pressure) / all;
  for (int64_t i = 0; i <= block.anchor; ++i)
    for (int64_t r = 0; r < rows; ++r) {
      const T left = left_of(faded[static_cast<std::size_t>(i * rows + r)], pressure, squarings);
      const int64_t at = (block.first + i) * rows + r;
      if (const T here = left - left * left; here > 0)
        to[at - block.first * rows] += factor * static_cast<double>(here / -log_beta[at]);
    }
}

template <typename T>
at::Tensor solve_all(const at::Tensor& log_beta, const std::vector<Block>& blocks,
                     int64_t squarings) {
  at::Tensor pressure = at::zeros({log_beta.size(0)}, log_beta.options());
  const T* const from = log_beta.const_data_ptr<T>();
  T* const to = pressure.data_ptr<T>();
  // The dear blocks first.
  parallel_for(0, static_cast<int64_t>(blocks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Block& block = blocks[blocks.size() - 1 - static_cast<std::size_t>(i)];
      std::fill(to + block.first + block.begin, to + block.first + block.end,
                solve(from, block, log_beta.size(1), squarings));
    }
  });
  return pressure;
}

template <typename T>
at::Tensor gradient_of(const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                       const std::vector<Block>& blocks, int64_t squarings,
                       const at::Tensor& pressure, const at::Tensor& given) {
  const int64_t rows = log_beta.size(1);
  at::Tensor result = at::zeros_like(log_beta);
  const T* const upstream = given.const_data_ptr<T>();
  // Documents have entries of their own; within one, blocks add up in their order.
  parallel_for(0, static_cast<int64_t>(cu_seqlens.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = cu_seqlens[static_cast<std::size_t>(b)];
      const int64_t size = cu_seqlens[static_cast<std::size_t>(b) + 1] - first;
      std::vector<double> sum(static_cast<std::size_t>(size * rows), 0.0);
      for (const Block& block : blocks) {
        if (block.first != first || size == 0) continue;
        double felt = 0.0;
        for (int64_t t = block.begin; t < block.end; ++t) felt += upstream[first + t];
        add_gradient(log_beta.const_data_ptr<T>(), block, rows, squarings,
                     pressure.const_data_ptr<T>()[first + block.begin], felt, sum.data());
      }
      std::copy(sum.begin(), sum.end(), result.data_ptr<T>() + first * rows);
    }
  });
  return result;
}

struct PressureFunction : torch::autograd::Function<PressureFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& log_beta,
                            const std::vector<int64_t>& cu_seqlens,
                            const std::vector<double>& budgets, int64_t squarings) {
    const at::Tensor source = log_beta.contiguous();
    const std::vector<Block> blocks = blocks_of(cu_seqlens, budgets);
    const at::Tensor pressure = source.scalar_type() == at::kDouble
                                    ? solve_all<double>(source, blocks, squarings)
                                    : solve_all<float>(source, blocks, squarings);
    ctx->save_for_backward({log_beta, pressure});
    ctx->saved_data["cu_seqlens"] = cu_seqlens;
    ctx->saved_data["budgets"] = budgets;
    ctx->saved_data["squarings"] = squarings;
    return pressure;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& given) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> cu_seqlens = ctx->saved_data["cu_seqlens"].toIntVector();
    const std::vector<Block> blocks =
        blocks_of(cu_seqlens, ctx->saved_data["budgets"].toDoubleVector());
    const int64_t squarings = ctx->saved_data["squarings"].toInt();
    const at::Tensor source = saved[0].contiguous(), upstream = given[0].contiguous();
    const auto& gradient =
        source.scalar_type() == at::kDouble ? gradient_of<double> : gradient_of<float>;
    return {gradient(source, cu_seqlens, blocks, squarings, saved[1], upstream), {}, {}, {}};
  }
};

}  // namespace

at::Tensor budget_pressure(const at::Tensor& log_beta, std::span<const int64_t> cu_seqlens,
                           std::span<const double> budgets, int64_t sharpness) {
  if (log_beta.dim() != 2 || !log_beta.device().is_cpu() ||
      (log_beta.scalar_type() != at::kFloat && log_beta.scalar_type() != at::kDouble))
    fail_argument(
        "budget pressure: expected log beta [N, R] float32 or float64 on the CPU, got {} {}",
        fmt::join(log_beta.sizes(), "x"), at::toString(log_beta.scalar_type()));
  check_documents(cu_seqlens, log_beta.size(0), "budget pressure");
  if (budgets.size() + 1 != cu_seqlens.size())
    fail_argument("budget pressure: expected a budget for each of {} documents, got {}",
                  cu_seqlens.size() - 1, budgets.size());
  for (const double budget : budgets)
    if (!std::isfinite(budget) || budget <= 0)
      fail_argument("budget pressure: expected budgets above 0 entries per row, got {}", budget);
  check_sharpness(sharpness, "budget pressure");
  return PressureFunction::apply(
      log_beta, std::vector<int64_t>(cu_seqlens.begin(), cu_seqlens.end()),
      std::vector<double>(budgets.begin(), budgets.end()), squarings_of(sharpness));
}

at::Tensor held_under_pressure(const at::Tensor& log_beta, int64_t begin, int64_t p,
                               double pressure, int64_t sharpness) {
  const at::Tensor own = log_beta.detach().slice(0, begin, begin + p + 1).neg();
  const at::Tensor age = at::arange(p, -1, -1, own.options()).unsqueeze(1);
  return (1.0 / (1.0 + at::pow(own * age * pressure, sharpness))).sum(0);
}

}  // namespace coppice::ops
