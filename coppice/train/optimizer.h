// AdamW over one flat vector: parameters, gradients and moments lie side by side, so that a step, a
// norm, a checkpoint and an exchange between processes are each one pass over memory.
//
//   m = b1 m + (1 - b1) g      v = b2 v + (1 - b2) g^2
//   p = p (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//
// Weight decay falls on matrices alone. Source: arXiv:1711.05101.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/train/gate_parameters.h"

namespace coppice {

struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-6;
};

// Learning rate: up in a line over `warmup` steps, then down along a cosine to `floor`.
struct Schedule {
  double peak = 2e-4;
  double floor = 1e-6;
  int64_t warmup = 100;
  int64_t steps = 1;  // of the whole run

  double at(int64_t step) const;  // step from 0
};

class AdamW final {
 public:
  // Takes over the parameters' storage: each becomes a view of one float32 vector, with a gradient
  // beside it, and requires grad from now on. They keep their values and identity.
  AdamW(const std::vector<NamedParameter>& parameters, const AdamOptions& options);

  // [P] float32 each, in one order: matrices first.
  at::Tensor& values() { return values_; }
  at::Tensor& gradients() { return gradients_; }
  at::Tensor& first_moment() { return first_; }
  at::Tensor& second_moment() { return second_; }
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  // Names and sizes in order: two optimizers with the same layout can exchange their state.
  const std::string& layout() const { return layout_; }

  void zero_gradients() { gradients_.zero_(); }
  // Scales the gradient down to `max_norm` where it is longer. -> its norm before, which may be
  // infinite or NaN: nothing is scaled then.
  double clip(double max_norm);
  void step(double learning_rate);

 private:
  AdamOptions options_;
  at::Tensor values_, gradients_, first_, second_;
  int64_t decayed_ = 0;  // values of matrices
  int64_t updates_ = 0;
  std::string layout_;
};

}  // namespace coppice
