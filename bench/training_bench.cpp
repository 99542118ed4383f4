// Time of the training kernels at the shapes of SmolLM2-135M (9 query heads on 3 KV heads of width
// 64, hidden size 576, vocabulary 49,152), in bfloat16, milliseconds forward and backward:
//   retention   ours, beside libtorch's attention without a bias, and beside softmax(q k + bias)
//   distill     KL and next token from hidden states
//   capacity    30 layers x 3 heads
//   need labels of one layer, forward alone
//   elementwise rms_norm and rope as training runs them
//   coppice_training_bench [tokens [rounds [name]]]   name: only rows that begin so
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <vector>

#include "coppice/ops/activation.h"
#include "coppice/ops/attention_reference.h"
#include "coppice/ops/capacity.h"
#include "coppice/ops/distillation.h"
#include "coppice/ops/need_labels.h"
#include "coppice/ops/parallel.h"
#include "coppice/ops/retention_attention.h"
#include "coppice/ops/rms_norm.h"
#include "coppice/ops/rope.h"

namespace {

using namespace coppice::ops;

std::string_view only;

struct Times {
  std::vector<double> forward, backward, processor;
};

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double>& x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

// fn() gives a tensor; its gradient is ones. One call first that is not counted.
template <typename Fn>
void report(std::string_view name, int rounds, const Fn& fn) {
  if (!name.starts_with(only)) return;
  Times times;
  for (int i = 0; i <= rounds; ++i) {
    const std::clock_t busy = std::clock();
    auto start = std::chrono::steady_clock::now();
    const at::Tensor out = fn();
    const double forward = since(start);
    const at::Tensor ones = at::ones_like(out);
    start = std::chrono::steady_clock::now();
    out.backward(ones);
    if (i == 0) continue;
    times.forward.push_back(forward * 1e3);
    times.backward.push_back(since(start) * 1e3);
    times.processor.push_back(static_cast<double>(std::clock() - busy) * 1e3 / CLOCKS_PER_SEC);
  }
  const double forward = median(times.forward), backward = median(times.backward);
  fmt::print("  {:<34} {:9.2f} {:9.2f} {:9.2f} {:9.2f}\n", name, forward, backward,
             forward + backward, median(times.processor));
}

at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) {
  return at::randn(sizes).to(type).set_requires_grad(true);
}

void attention(int64_t tokens, int rounds) {
  const at::Tensor q = leaf({tokens, 9, 64}), k = leaf({tokens, 3, 64}), v = leaf({tokens, 3, 64});
  const at::Tensor log_beta = (-at::exp(at::rand({tokens, 3}) * 7 - 8)).set_requires_grad(true);
  const std::vector<int64_t> cu = {0, tokens};
  report("retention attention", rounds,
         [&] { return retention_attention(q, k, v, log_beta, cu, 0.125); });
  const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  report("libtorch attention, no bias", rounds, [&] {
    return at::scaled_dot_product_attention(heads_first(q), heads_first(k), heads_first(v), {}, 0.0,
                                            true, 0.125, true);
  });
  const at::Tensor place = at::arange(tokens, at::kFloat);
  const at::Tensor age = (place.unsqueeze(1) - place.unsqueeze(0)).clamp_min(0);
  const at::Tensor future = causal_mask(tokens, tokens, 0).logical_not();
  report("eager with additive bias", std::min(rounds, 3), [&] {
    const auto repeat = [&](const at::Tensor& x) {
      return x.repeat_interleave(3, 1).transpose(0, 1);
    };
    at::Tensor bias = (log_beta.t().unsqueeze(1) * age).masked_fill(future, -1e30);
    bias = bias.repeat_interleave(3, 0).to(at::kBFloat16);
    const at::Tensor logits =
        at::matmul(q.transpose(0, 1), repeat(k).transpose(1, 2)) * 0.125 + bias;
    return at::matmul(at::softmax(logits, -1, at::kFloat).to(at::kBFloat16), repeat(v));
  });
}

void rest(int64_t tokens, int rounds) {
  const std::vector<int64_t> cu = {0, tokens};
  const at::Tensor log_beta = (-at::exp(at::rand({tokens, 30, 3}) * 7 - 8)).set_requires_grad(true);
  report("capacity", rounds,
         [&] { return capacity_loss(log_beta, cu, 128, CapacityScope::kGlobal); });
  const at::Tensor hidden = leaf({tokens, 576}),
                   teacher = at::randn({tokens, 576}).to(at::kBFloat16);
  const at::Tensor head = (at::randn({49152, 576}) / 12).to(at::kBFloat16);
  const at::Tensor targets = at::randint(49152, {tokens}, at::kLong);
  report("distillation", std::min(rounds, 3),
         [&] { return distill_loss(hidden, teacher, head, targets).loss; });
  NeedInput need;
  need.q = at::randn({tokens, 9, 64}).to(at::kBFloat16);
  need.k = at::randn({tokens, 3, 64}).to(at::kBFloat16);
  need.v = at::randn({tokens, 3, 64}).to(at::kBFloat16);
  need.output_weight = at::randn({576, 576}).to(at::kBFloat16);
  need.residual_norm = at::ones({tokens});
  need.cu_seqlens = cu;
  need.scale = 0.125;
  const at::Tensor zero = at::zeros({1}).set_requires_grad(true);
  report("need labels, forward alone", rounds, [&] { return need_labels(need).ages * zero; });
  const at::Tensor weight = at::randn({576}).to(at::kBFloat16);
  report("rms_norm", rounds, [&] { return rms_norm(hidden, weight, 1e-5); });
  const at::Tensor q = leaf({tokens, 9, 64});
  const at::Tensor angle = at::randn({tokens, 32});
  const RopeAngles angles{angle.cos(), angle.sin()};
  report("rope of q", rounds, [&] { return apply_rope(q, angles); });
  const at::Tensor gate = leaf({tokens, 1536}), up = leaf({tokens, 1536});
  report("silu_mul", rounds, [&] { return silu_mul(gate, up); });
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 2048;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (argc > 3) only = argv[3];
  at::set_num_threads(num_threads());
  fmt::print("{} tokens, {} threads: ms forward, backward, both, processor time of both\n", tokens,
             num_threads());
  attention(tokens, rounds);
  rest(tokens, rounds);
  return 0;
}
