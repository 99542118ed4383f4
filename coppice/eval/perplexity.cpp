#include "coppice/eval/perplexity.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "coppice/attention/paged_backend.h"
#include "coppice/core/error.h"
#include "coppice/engine/engine.h"
#include "coppice/engine/pass.h"
#include "coppice/models/load.h"
#include "coppice/models/model.h"

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSliceRows = 64;  // of logits at once: 64 x V floats

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void check(const Model& model, std::span<const int32_t> ids, const PerplexityOptions& options) {
  const ModelArgs& args = model.args();
  const auto have = static_cast<int64_t>(ids.size());
  if (options.context_tokens < 4) {
    fail_argument("perplexity: a context must have at least 4 tokens, got {}",
                  options.context_tokens);
  }
  if (options.context_tokens > args.max_position_embeddings) {
    fail(ErrorCode::kCapacity, "perplexity: a context of {} tokens passes the model's {} positions",
         options.context_tokens, args.max_position_embeddings);
  }
  if (options.contexts < 1 || options.chunk_tokens < 1) {
    fail_argument("perplexity: expected at least 1 context and 1 token a pass, got {} and {}",
                  options.contexts, options.chunk_tokens);
  }
  if (options.contexts > have / options.context_tokens) {
    fail_argument("perplexity: {} contexts of {} tokens are asked for, the text has {} tokens",
                  options.contexts, options.context_tokens, have);
  }
  for (const int32_t id : ids) {
    if (id < 0 || id >= args.vocab_size) {
      fail_argument("perplexity: token id {} is outside the vocabulary of {}", id, args.vocab_size);
    }
  }
}

CacheConfig sized_cache(const Model& model, const PerplexityOptions& options) {
  CacheConfig config = cache_config(model.args(), options.kv_dtype, options.device);
  config.max_blocks =
      worst_case_blocks(config, options.eviction, options.chunk_tokens, options.context_tokens);
  return config;
}

// Sum of -log p over rows of hidden [N, C], each with the token that follows it.
double sum_nll(Model& model, const at::Tensor& hidden, std::span<const int32_t> targets) {
  double sum = 0.0;
  const auto rows = static_cast<int64_t>(targets.size());
  for (int64_t begin = 0; begin < rows; begin += kSliceRows) {
    const int64_t count = std::min(kSliceRows, rows - begin);
    at::Tensor wanted = torch::empty({count, 1}, torch::kLong);
    for (int64_t i = 0; i < count; ++i) {
      wanted.mutable_data_ptr<int64_t>()[i] = targets[static_cast<std::size_t>(begin + i)];
    }
    const at::Tensor logits = model.logits(hidden.narrow(0, begin, count)).to(torch::kFloat);
    const at::Tensor log_p = torch::log_softmax(logits, 1).gather(1, wanted.to(logits.device()));
    sum -= log_p.sum(torch::kDouble).item<double>();
  }
  return sum;
}

class Evaluation final {
 public:
  Evaluation(Model& model, const PerplexityOptions& options)
      : model_(model),
        options_(options),
        cache_(sized_cache(model, options)),
        backend_(cache_),
        policy_(options.eviction, cache_.config()) {
    policy_.check_gate_kind(model.gate_kind());
  }

  // -> sum of -log p over the scored half.
  double run_context(std::span<const int32_t> ids, const std::function<void()>& after_pass) {
    const SequenceId sequence = cache_.add_sequence();
    double nll = 0.0;
    for (std::size_t at = 0; at < ids.size();) {
      const std::size_t count =
          std::min(ids.size() - at, static_cast<std::size_t>(options_.chunk_tokens));
      nll += run_pass(sequence, ids, at, count);
      at += count;
      result_.tokens_read += static_cast<int64_t>(count);
      after_pass();
    }
    record_rows(sequence);
    cache_.remove_sequence(sequence);
    return nll;
  }

  PerplexityResult& result() { return result_; }

  void record_run(double seconds) {
    result_.seconds = seconds;
    result_.eviction = policy_.config();
    result_.bytes_bound = cache_.bytes_bound();
    result_.bytes_peak = cache_.peak_bytes();
  }

 private:
  // The tokens at .. at + count - 1 of a context; predictions made there are scored if due.
  double run_pass(SequenceId sequence, std::span<const int32_t> ids, std::size_t at,
                  std::size_t count) {
    const PassPart part{sequence, ids.subspan(at, count), &policy_};
    const at::Tensor hidden = forward_pass(model_, backend_, cache_, std::span(&part, 1));
    result_.peak_entries = std::max(result_.peak_entries, cache_.entries(sequence));
    const std::size_t first = std::max(at, ids.size() / 2);
    const std::size_t end = std::min(at + count, ids.size() - 1);
    double nll = 0.0;
    if (first < end) {
      nll = sum_nll(
          model_,
          hidden.narrow(0, static_cast<int64_t>(first - at), static_cast<int64_t>(end - first)),
          ids.subspan(first + 1, end - first));
      result_.scored_tokens += static_cast<int64_t>(end - first);
    }
    const Clock::time_point begin = Clock::now();
    result_.evicted_entries += commit_pass(cache_, part);
    result_.evict_seconds += seconds_since(begin);
    return nll;
  }

  void record_rows(SequenceId sequence) {
    const CacheConfig& sizes = cache_.config();
    result_.kept_entries = cache_.entries(sequence);
    result_.kept_per_layer.assign(static_cast<std::size_t>(sizes.num_layers), 0);
    result_.shortest_row = result_.longest_row = cache_.row(sequence, 0, 0).length;
    for (int64_t layer = 0; layer < sizes.num_layers; ++layer) {
      for (int64_t head = 0; head < sizes.num_kv_heads; ++head) {
        const int64_t length = cache_.row(sequence, layer, head).length;
        result_.kept_per_layer[static_cast<std::size_t>(layer)] += length;
        result_.shortest_row = std::min(result_.shortest_row, length);
        result_.longest_row = std::max(result_.longest_row, length);
      }
    }
  }

  Model& model_;
  const PerplexityOptions& options_;
  KvCache cache_;
  PagedBackend backend_;
  EvictionPolicy policy_;
  PerplexityResult result_;
};

}  // namespace

PerplexityResult evaluate_perplexity(Model& model, std::span<const int32_t> ids,
                                     const PerplexityOptions& options,
                                     const PerplexityProgress& progress) {
  check(model, ids, options);
  const c10::InferenceMode inference;
  const Clock::time_point begin = Clock::now();
  const int64_t in_all = options.context_tokens * options.contexts;
  Evaluation evaluation(model, options);
  PerplexityResult& result = evaluation.result();
  double nll = 0.0;
  for (int64_t i = 0; i < options.contexts; ++i) {
    const auto context = ids.subspan(static_cast<std::size_t>(i * options.context_tokens),
                                     static_cast<std::size_t>(options.context_tokens));
    nll += evaluation.run_context(context, [&] {
      if (progress && !progress(result.tokens_read, in_all)) {
        fail_argument("perplexity: ended by the caller after {} of {} tokens", result.tokens_read,
                      in_all);
      }
    });
    result.running_perplexity.push_back(std::exp(nll / static_cast<double>(result.scored_tokens)));
  }
  result.mean_nll = nll / static_cast<double>(result.scored_tokens);
  result.perplexity = result.running_perplexity.back();
  evaluation.record_run(seconds_since(begin));
  return std::move(result);
}

}  // namespace coppice
