// Perplexity of a text under a KV budget: the text is fed through the cache in pieces and evicted
// as serving would, so what is measured is what a user gets.
//
// Protocol (that of llama-perplexity): consecutive contexts of n tokens, no begin token, each from
// an empty cache; the predictions made at positions n/2 .. n - 2 are scored, each of the token that
// follows. Log-softmax over the whole vocabulary in float32, summed in float64.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "coppice/eviction/policy.h"

namespace coppice {

struct Model;

struct PerplexityOptions {
  int64_t context_tokens = 1024;  // n, at least 4
  int64_t contexts = 1;           // how many, from the start of the text
  EvictionConfig eviction = {.policy = "full"};
  int64_t chunk_tokens = 32;  // of one pass; eviction follows each
  at::ScalarType kv_dtype = at::kFloat;
  c10::Device device = c10::Device(c10::kCPU);
};

struct PerplexityResult {
  int64_t scored_tokens = 0;
  double mean_nll = 0.0;  // natural log
  double perplexity = 0.0;
  std::vector<double> running_perplexity;  // [contexts], over the contexts up to each

  // Of the last context, at its end.
  int64_t kept_entries = 0;
  std::vector<int64_t> kept_per_layer;  // [L]
  int64_t shortest_row = 0;
  int64_t longest_row = 0;

  // Of the whole run.
  EvictionConfig eviction;  // in force: nothing in it is unset
  int64_t tokens_read = 0;
  int64_t evicted_entries = 0;
  int64_t peak_entries = 0;
  int64_t bytes_bound = 0;
  int64_t bytes_peak = 0;
  double seconds = 0.0;
  double evict_seconds = 0.0;
};

// Called after every pass; the evaluation ends with kInvalidArgument when it returns false.
using PerplexityProgress = std::function<bool(int64_t tokens_read, int64_t tokens_in_all)>;

// ids: the text, at least context_tokens x contexts of them. Throws kInvalidArgument for a text
// that is too short, options out of range or a policy that needs a gate the model lacks; kCapacity
// for a context beyond the model's positions.
PerplexityResult evaluate_perplexity(Model& model, std::span<const int32_t> ids,
                                     const PerplexityOptions& options,
                                     const PerplexityProgress& progress = {});

}  // namespace coppice
