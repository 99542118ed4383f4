// The gate of Fast KVzip: how much a repetition of the text would look at an entry, by an attention
// of its own in which the entry's key competes with learned sinks.
//
// Of g numbers per query head and per KV head of x, without rotation (docs/maths.md 26):
//
//   s[h] = mean over the group of sigmoid(k[h].q / sqrt(g) + b - logsumexp_j(sink[h,j].q /
//   sqrt(g)))
//
// forward() gives ln s <= 0. Source: arXiv:2601.17668. Differs from the published trainer: b counts
// once.
#pragma once

#include <cstdint>
#include <memory>

#include "coppice/nn/gate.h"
#include "coppice/ops/gate_scores.h"

namespace coppice::nn {

struct FastKvzipGateOptions {
  int64_t hidden_size = 0;
  int64_t width = 16;  // g
  int64_t sinks = 16;  // S
  int64_t num_query_heads = 0;
  int64_t num_kv_heads = 0;
};

// Submodule projection [(Hq + Hkv) g, C], rows of queries first, without bias; parameters
// query_bias [Hq g], query_norm [g], key_norm [g], sinks [Hkv, S, g], bias [Hq].
class FastKvzipGate final : public Gate {
 public:
  // Throws kInvalidArgument on sizes out of range.
  explicit FastKvzipGate(const FastKvzipGateOptions& options);

  Linear& first_layer() override { return *projection_; }
  at::Tensor after_first_layer(at::Tensor u) override;
  void pack() override;
  int64_t num_kv_heads() const override { return options_.num_kv_heads; }

 private:
  FastKvzipGateOptions options_;
  std::shared_ptr<Linear> projection_;
  ops::SinkGate sink_gate_;
};

}  // namespace coppice::nn
