// How fast PackedMatrix is on the shapes of SmolLM2-135M (30 layers, Q4_1, a Q8_0 head), against
// the memory's own speed and against ATen's kernels.
//
//   coppice_packed_bench [threads] [rounds] [aten]     default: 2 threads, 15 rounds
//
// The word `aten` adds ATen's kernels, which take minutes where a neighbour holds a core.
//
// Weights are random bits. Candidates run in turn, round by round, so that a noisy neighbour hits
// all alike; printed are median and best, ratios are of medians.
#include <ATen/Parallel.h>
#include <ATen/ops/_convert_weight_to_int4pack_for_cpu.h>
#include <ATen/ops/_weight_int4pack_mm_for_cpu.h>
#include <ATen/ops/_weight_int8pack_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "apps/stream_bandwidth.h"
#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/ops/cpu_features.h"
#include "coppice/ops/packed_float.h"
#include "coppice/ops/packed_matrix.h"
#include "coppice/ops/parallel.h"

namespace coppice {
namespace {

using ops::PackedMatrix;
constexpr int64_t kLayers = 30, kHidden = 576, kKv = 192, kFfn = 1536, kVocab = 49152;

double now_ms() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(time).count();
}

struct Bytes {
  std::vector<std::byte> bytes;
  StoredTensor stored;
};

Bytes random_weights(StorageType type, int64_t rows, int64_t cols, Rng& rng) {
  Bytes w;
  w.stored.type = type;
  w.stored.shape = {rows, cols};
  w.bytes.resize(static_cast<std::size_t>(rows * w.stored.row_bytes()));
  for (std::size_t i = 0; i + 8 <= w.bytes.size(); i += 8) {
    const uint64_t bits = rng.below(~uint64_t{0});
    std::memcpy(w.bytes.data() + i, &bits, 8);
  }
  const auto block = static_cast<std::size_t>(storage_traits(type).block_bytes);
  const uint16_t scale = ops::float_to_half(0.01f);
  for (std::size_t i = 0; i < w.bytes.size(); i += block) {
    std::memcpy(w.bytes.data() + i, &scale, 2);
    if (type == StorageType::kQ4_1) std::memcpy(w.bytes.data() + i + 2, &scale, 2);
  }
  w.stored.bytes = w.bytes;
  return w;
}

struct Layer {
  PackedMatrix q, k, v, o, gate, up, down;
};

struct Model {
  std::vector<Layer> layers;
  std::vector<PackedMatrix> head;  // one
  int64_t bytes = 0;
};

// The layers' products for n rows; the head for one row.
void run_packed(const Model& model, const at::Tensor& x, const at::Tensor& wide) {
  for (const Layer& layer : model.layers) {
    const PackedMatrix* qkv[] = {&layer.q, &layer.k, &layer.v};
    const PackedMatrix* gate_up[] = {&layer.gate, &layer.up};
    PackedMatrix::multiply_together(qkv, x);
    layer.o.multiply(x);
    PackedMatrix::multiply_together(gate_up, x);
    layer.down.multiply(wide);
  }
  model.head[0].multiply(x.slice(0, 0, 1));
}

// One [out, in] pair per product of a layer, as ATen would be called: q, k, v and gate, up joined.
const std::vector<std::pair<int64_t, int64_t>> kShapes = {
    {kHidden + 2 * kKv, kHidden}, {kHidden, kHidden}, {2 * kFfn, kHidden}, {kHidden, kFfn}};

struct AtenModel {
  std::vector<std::vector<at::Tensor>> layers;
  at::Tensor head;
};

using Linear = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& w)>;

void run_aten(const AtenModel& model, const Linear& linear, const at::Tensor& x,
              const at::Tensor& wide) {
  for (const auto& layer : model.layers) {
    for (std::size_t i = 0; i < layer.size(); ++i)
      linear(kShapes[i].second == kFfn ? wide : x, layer[i]);
  }
  linear(x.slice(0, 0, 1), model.head);
}

AtenModel make_aten(const std::function<at::Tensor(int64_t, int64_t)>& make) {
  AtenModel model;
  for (int64_t i = 0; i < kLayers; ++i) {
    model.layers.emplace_back();
    for (const auto& [rows, cols] : kShapes) model.layers.back().push_back(make(rows, cols));
  }
  model.head = make(kVocab, kHidden);
  return model;
}

struct Candidate {
  std::string name;
  std::function<void()> run;
  std::vector<double> times;
};

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void compare(std::vector<Candidate>& candidates, int rounds) {
  for (int round = -1; round < rounds; ++round) {
    for (Candidate& c : candidates) {
      for (int warm = 0; warm < 3; ++warm) c.run();  // caches as they are from token to token
      const double start = now_ms();
      c.run();
      if (round >= 0) c.times.push_back(now_ms() - start);
    }
  }
}

void print(const std::vector<Candidate>& candidates, double tokens) {
  const double ours = median(candidates.front().times);
  for (const Candidate& c : candidates) {
    const double ms = median(c.times);
    const double best = *std::min_element(c.times.begin(), c.times.end());
    std::printf("  %-28s %9.3f ms (best %9.3f)  %9.1f tokens/s  ours is %.2f x as fast\n",
                c.name.c_str(), ms, best, tokens * 1000 / ms, ms / ours);
  }
}

std::vector<Candidate> aten_candidates(int64_t n) {
  const at::Tensor x = at::randn({n, kHidden}), wide = at::randn({n, kFfn});
  const at::Tensor xb = x.to(at::kBFloat16), wide_b = wide.to(at::kBFloat16);
  std::vector<Candidate> list;
  const auto add = [&list](std::string name, AtenModel model, Linear linear, at::Tensor a,
                           at::Tensor b) {
    list.push_back({std::move(name), [=] { run_aten(model, linear, a, b); }, {}});
  };
  const Linear plain = [](const at::Tensor& a, const at::Tensor& w) { return at::linear(a, w); };
  add("ATen linear float32", make_aten([](int64_t r, int64_t c) {
        return at::randn({r, c});
      }),
      plain, x, wide);
  add("ATen linear bfloat16", make_aten([&](int64_t r, int64_t c) {
        return at::randn({r, c}).to(at::kBFloat16);
      }),
      plain, xb, wide_b);
  add(
      "ATen int4, groups of 32", make_aten([](int64_t r, int64_t c) {
        return at::_convert_weight_to_int4pack_for_cpu(
            at::randint(0, 16, {r, c}, at::TensorOptions(at::kInt)), 2);
      }),
      [](const at::Tensor& a, const at::Tensor& w) {
        static const at::Tensor scales = at::randn({kFfn / 32 * kVocab * 2}).to(at::kBFloat16);
        const int64_t groups = a.size(1) / 32, rows = w.size(0);
        return at::_weight_int4pack_mm_for_cpu(
            a, w, 32, scales.slice(0, 0, groups * rows * 2).view({groups, rows, 2}));
      },
      xb, wide_b);
  add(
      "ATen int8, a scale per row", make_aten([](int64_t r, int64_t c) {
        return at::randint(-128, 128, {r, c}, at::TensorOptions(at::kChar));
      }),
      [](const at::Tensor& a, const at::Tensor& w) {
        static const at::Tensor scales = at::randn({kVocab}).to(at::kBFloat16);
        return at::_weight_int8pack_mm(a, w, scales.slice(0, 0, w.size(0)));
      },
      xb, wide_b);
  return list;
}

Model make_model() {
  Rng rng(1);
  const auto make = [&rng](int64_t rows, int64_t cols) {
    return random_weights(StorageType::kQ4_1, rows, cols, rng);
  };
  const Bytes q = make(kHidden, kHidden), k = make(kKv, kHidden), v = make(kKv, kHidden),
              gate = make(kFfn, kHidden), up = make(kFfn, kHidden), down = make(kHidden, kFfn),
              head = random_weights(StorageType::kQ8_0, kVocab, kHidden, rng);
  Model model;
  const double start = now_ms();
  const auto pack = [&model](const Bytes& bytes) {
    PackedMatrix packed = PackedMatrix::pack(bytes.stored);
    model.bytes += packed.bytes();
    return packed;
  };
  for (int64_t i = 0; i < kLayers; ++i) {
    model.layers.push_back({pack(q), pack(k), pack(v), pack(q), pack(gate), pack(up), pack(down)});
  }
  model.head.push_back(pack(head));
  std::printf("packing: %.0f ms for %.1f MB\n", now_ms() - start,
              static_cast<double>(model.bytes) / 1e6);
  return model;
}

void run(int threads, int rounds, bool aten) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  ops::set_num_threads(threads);
  at::set_num_threads(threads);
  std::printf("threads: %d, level: %s\n", threads,
              std::string(ops::cpu_level_name(ops::cpu_level())).c_str());
  const Model model = make_model();
  StreamBandwidth stream(model.bytes);
  for (const int64_t n : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{8}, int64_t{512}}) {
    const at::Tensor x = at::randn({n, kHidden}), wide = at::randn({n, kFfn});
    std::vector<Candidate> list;
    list.push_back({"packed", [&] { run_packed(model, x, wide); }, {}});
    if (aten && (n == 1 || n == 512)) {
      for (Candidate& c : aten_candidates(n)) list.push_back(std::move(c));
    }
    compare(list, n == 512 ? std::max(1, rounds / 5) : rounds);
    std::printf("%ld rows of x, all layers, head for one:\n", static_cast<long>(n));
    print(list, static_cast<double>(n));
    if (n == 1) {
      const double packed = static_cast<double>(model.bytes) / 1e6 / median(list[0].times);
      const double memory = stream.measure() / 1e9;
      std::printf("  packed reads %.1f GB/s, the memory gives %.1f GB/s: %.0f %% of it\n", packed,
                  memory, 100 * packed / memory);
    }
  }
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  try {
    coppice::run(argc > 1 ? std::atoi(argv[1]) : 2, argc > 2 ? std::atoi(argv[2]) : 15,
                 argc > 3 && std::strcmp(argv[3], "aten") == 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "coppice_packed_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
