#include "coppice/attention/paged_backend.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "coppice/attention/dense_backend.h"
#include "coppice/cache/validator.h"
#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/ops/attention_reference.h"
#include "coppice/ops/cpu_features.h"

namespace coppice {
namespace {

using torch::Tensor;

constexpr int64_t kLayers = 2;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Shape {
  int64_t kv_heads = 2;
  int64_t group = 3;
  int64_t head_dim = 16;
};

CacheConfig cache_config(const Shape& shape, at::ScalarType dtype, int64_t blocks = 640) {
  CacheConfig config;
  config.num_layers = kLayers;
  config.num_kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.dtype = dtype;
  config.max_blocks = blocks;
  return config;
}

// The tokens of one stream for every layer, as a model would hand them over.
struct Stream {
  Tensor q, k, v, log_beta;  // [layers, T, heads, D]; log_beta [layers, T, Hkv]

  Stream(const Shape& s, int64_t tokens)
      : q(torch::randn({kLayers, tokens, s.kv_heads * s.group, s.head_dim})),
        k(torch::randn({kLayers, tokens, s.kv_heads, s.head_dim})),
        v(torch::randn({kLayers, tokens, s.kv_heads, s.head_dim})),
        log_beta(-torch::rand({kLayers, tokens, s.kv_heads})) {}
  int64_t tokens() const { return q.size(1); }
};

struct Part {
  SequenceId id;
  const Stream* stream;
  int64_t first, count;
};

double scale_of(const Tensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.size(-1))); }

Batch batch_of(const std::vector<Part>& parts) {
  Batch batch;
  batch.cu_seqlens = {0};
  for (const Part& part : parts) {
    batch.sequence_ids.push_back(part.id);
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + part.count);
  }
  batch.token_ids = torch::zeros({batch.num_tokens()}, torch::kLong);
  batch.positions = torch::zeros({batch.num_tokens()}, torch::kLong);
  return batch;
}

AttentionInput input_of(const std::vector<Part>& parts, int64_t layer, int64_t window) {
  std::vector<Tensor> q, k, v, log_beta;
  for (const Part& p : parts) {
    q.push_back(p.stream->q[layer].narrow(0, p.first, p.count));
    k.push_back(p.stream->k[layer].narrow(0, p.first, p.count));
    v.push_back(p.stream->v[layer].narrow(0, p.first, p.count));
    log_beta.push_back(p.stream->log_beta[layer].narrow(0, p.first, p.count));
  }
  AttentionInput input;
  input.layer = layer;
  input.q = torch::cat(q);
  input.k = torch::cat(k);
  input.v = torch::cat(v);
  input.log_beta = torch::cat(log_beta);
  input.scale = scale_of(input.q);
  input.window = window;
  return input;
}

// One pass over all layers -> [layers, N, Hq, D].
Tensor pass(KvCache& cache, AttentionBackend& backend, const std::vector<Part>& parts,
            int64_t window = 0) {
  for (const Part& part : parts) EXPECT_TRUE(cache.reserve(part.id, part.count));
  std::vector<Tensor> outs;
  const Batch batch = batch_of(parts);
  for (int64_t layer = 0; layer < kLayers; ++layer)
    outs.push_back(backend.forward(input_of(parts, layer, window), batch));
  for (const Part& part : parts) cache.commit(part.id);
  return torch::stack(outs);
}

// A whole stream in chunks -> [layers, T, Hq, D].
Tensor run_in_chunks(KvCache& cache, AttentionBackend& backend, const Stream& stream, int64_t chunk,
                     int64_t window = 0) {
  const SequenceId id = cache.add_sequence();
  std::vector<Tensor> outs;
  for (int64_t first = 0; first < stream.tokens(); first += chunk)
    outs.push_back(pass(cache, backend,
                        {{id, &stream, first, std::min(chunk, stream.tokens() - first)}}, window));
  return torch::cat(outs, 1);
}

Tensor run_dense(const Stream& stream, int64_t window = 0) {
  DenseBackend backend;
  std::vector<Tensor> outs;
  const std::vector<Part> parts = {{0, &stream, 0, stream.tokens()}};
  for (int64_t layer = 0; layer < kLayers; ++layer)
    outs.push_back(backend.forward(input_of(parts, layer, window), batch_of(parts)));
  return torch::stack(outs);
}

// Everything that no row holds becomes NaN.
void poison(KvCache& cache) {
  Tensor free = torch::ones({cache.keys().size(0), kBlockEntries}, torch::kBool);
  auto flags = free.accessor<bool, 2>();
  for (const SequenceId id : cache.sequences())
    for (const BlockTable& row : cache.rows(id))
      for (int64_t e = 0; e < row.length; ++e)
        flags[row.blocks[static_cast<std::size_t>(e / kBlockEntries)]][e % kBlockEntries] = false;
  cache.keys().masked_fill_(free.unsqueeze(1), kNaN);
  cache.values().masked_fill_(free.unsqueeze(2), kNaN);
}

void expect_near(const Tensor& got, const Tensor& expected, double tolerance) {
  ASSERT_TRUE(got.isfinite().all().item<bool>());
  EXPECT_LE((got.to(torch::kDouble) - expected.to(torch::kDouble)).abs().max().item<double>(),
            tolerance);
}

// What `stream` tokens first .. first + count - 1 see of the entries the cache held after
// `before` tokens (kept[layer][head], positions) and of each other; in float64.
using Kept = std::vector<std::vector<std::vector<int32_t>>>;
Tensor masked_dense(const Stream& stream, const Kept& kept, int64_t first, int64_t count,
                    at::ScalarType dtype) {
  const int64_t end = first + count;
  std::vector<Tensor> outs;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const auto heads = static_cast<int64_t>(kept[0].size());
    Tensor visible = torch::zeros({heads, count, end}, torch::kBool);
    for (int64_t h = 0; h < heads; ++h) {
      for (const int32_t p : kept[static_cast<std::size_t>(layer)][static_cast<std::size_t>(h)])
        visible[h].select(1, p).fill_(true);
      visible[h].narrow(1, first, count).copy_(ops::causal_mask(count, count, 0));
    }
    const auto stored = [&](const Tensor& t) {
      return t[layer].narrow(0, 0, end).to(dtype).to(torch::kDouble);
    };
    const Tensor q = stream.q[layer].narrow(0, first, count).to(torch::kDouble);
    outs.push_back(
        ops::attention_reference(q, stored(stream.k), stored(stream.v), scale_of(q), visible));
  }
  return torch::stack(outs);
}

Kept kept_positions(const KvCache& cache, SequenceId id) {
  Kept kept(static_cast<std::size_t>(kLayers));
  for (int64_t layer = 0; layer < kLayers; ++layer)
    for (int64_t head = 0; head < cache.config().num_kv_heads; ++head)
      kept[static_cast<std::size_t>(layer)].push_back(cache.read_row(id, layer, head).positions);
  return kept;
}

// Drops entries at random, another share in every row; one row loses everything.
void evict_at_random(KvCache& cache, SequenceId id, Rng& rng) {
  for (int64_t layer = 0; layer < kLayers; ++layer)
    for (int64_t head = 0; head < cache.config().num_kv_heads; ++head) {
      const int64_t length = cache.row(id, layer, head).length;
      const double share = layer == 1 && head == 0 ? 0.0 : rng.uniform();
      std::vector<uint8_t> keep(static_cast<std::size_t>(length));
      for (uint8_t& flag : keep) flag = rng.uniform() < share ? 1 : 0;
      cache.keep(id, layer, head, keep);
    }
}

class Level final {
 public:
  explicit Level(ops::CpuLevel level) : before_(ops::cpu_level()) { ops::set_cpu_level(level); }
  ~Level() { ops::set_cpu_level(before_); }

 private:
  ops::CpuLevel before_;
};

std::vector<ops::CpuLevel> levels() {
  std::vector<ops::CpuLevel> all;
  for (const ops::CpuLevel level :
       {ops::CpuLevel::kPortable, ops::CpuLevel::kAvx2, ops::CpuLevel::kAvx512})
    if (level <= ops::detected_cpu_level()) all.push_back(level);
  return all;
}

TEST(PagedBackend, equals_dense_on_every_level_path_and_dtype) {
  torch::manual_seed(1);
  const Shape shape;
  const Stream stream(shape, 75);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    Stream stored = stream;
    stored.k = stream.k.to(dtype).to(at::kFloat);
    stored.v = stream.v.to(dtype).to(at::kFloat);
    const Tensor expected = run_dense(stored);
    for (const auto path : {PagedBackend::Path::kFastest, PagedBackend::Path::kReference})
      for (const ops::CpuLevel level : levels()) {
        const Level use(level);
        KvCache cache(cache_config(shape, dtype));
        poison(cache);
        PagedBackend backend(cache, path);
        expect_near(run_in_chunks(cache, backend, stream, 75), expected, 1e-5);
      }
  }
}

TEST(PagedBackend, chunks_and_decode_equal_one_pass) {
  torch::manual_seed(2);
  const Shape shape;
  const Stream stream(shape, 300);
  for (const int64_t window : {0, 40}) {
    const Tensor expected = run_dense(stream, window);
    for (const int64_t chunk : {1, 7, 16, 33, 300})
      for (const ops::CpuLevel level : levels()) {
        const Level use(level);
        KvCache cache(cache_config(shape, at::kFloat));
        poison(cache);
        PagedBackend backend(cache);
        expect_near(run_in_chunks(cache, backend, stream, chunk, window), expected, 1e-5);
      }
  }
}

TEST(PagedBackend, K14_batched_is_alone_bit_for_bit) {
  torch::manual_seed(3);
  const Shape shape;
  const std::vector<int64_t> lengths = {3, 50, 200, 600};
  std::vector<Stream> streams;
  for (const int64_t length : lengths) streams.emplace_back(shape, length + 4);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    std::vector<Tensor> alone;
    for (const Stream& stream : streams) {
      KvCache cache(cache_config(shape, dtype));
      PagedBackend backend(cache);
      alone.push_back(run_in_chunks(cache, backend, stream, stream.tokens() - 4));
    }
    KvCache cache(cache_config(shape, dtype));
    PagedBackend backend(cache);
    std::vector<Part> parts;
    for (const Stream& stream : streams)
      parts.push_back({cache.add_sequence(), &stream, 0, stream.tokens() - 4});
    std::vector<Tensor> outs = {pass(cache, backend, parts)};
    for (Part& part : parts) part = {part.id, part.stream, part.count, 4};
    outs.push_back(pass(cache, backend, parts));
    EXPECT_TRUE(validate(cache.snapshot()).empty());
    int64_t prompt = 0;
    for (std::size_t s = 0; s < streams.size(); ++s) {
      EXPECT_TRUE(outs[0].narrow(1, prompt, lengths[s]).equal(alone[s].narrow(1, 0, lengths[s])));
      EXPECT_TRUE(outs[1]
                      .narrow(1, 4 * static_cast<int64_t>(s), 4)
                      .equal(alone[s].narrow(1, lengths[s], 4)));
      prompt += lengths[s];
    }
  }
}

TEST(PagedBackend, K09_after_eviction_equals_dense_masked_to_the_kept_set) {
  torch::manual_seed(4);
  const Shape shape;
  const Stream stream(shape, 400);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const ops::CpuLevel level : levels()) {
      if (dtype != at::kHalf && level != levels().back()) continue;
      const Level use(level);
      Rng rng(5);
      KvCache cache(cache_config(shape, dtype));
      PagedBackend backend(cache);
      const SequenceId id = cache.add_sequence();
      int64_t seen = 0;
      for (const int64_t count : {90, 1, 33, 1, 1, 120, 16, 8, 1, 99}) {
        poison(cache);
        const Kept kept = kept_positions(cache, id);
        const Tensor got = pass(cache, backend, {{id, &stream, seen, count}});
        expect_near(got, masked_dense(stream, kept, seen, count, dtype), 1e-5);
        seen += count;
        if (count != 16) evict_at_random(cache, id, rng);
        EXPECT_TRUE(validate(cache.snapshot()).empty());
      }
    }
}

TEST(PagedBackend, K02_a_chunk_after_eviction_is_token_by_token) {
  torch::manual_seed(6);
  const Shape shape;
  const Stream stream(shape, 108);
  Rng rng(7);
  KvCache cache(cache_config(shape, at::kFloat));
  PagedBackend backend(cache);
  const SequenceId chunked = cache.add_sequence();
  pass(cache, backend, {{chunked, &stream, 0, 100}});
  evict_at_random(cache, chunked, rng);
  const SequenceId single = cache.fork(chunked);
  const Tensor expected = pass(cache, backend, {{chunked, &stream, 100, 8}});
  for (int64_t t = 0; t < 8; ++t)
    EXPECT_TRUE(
        pass(cache, backend, {{single, &stream, 100 + t, 1}}).equal(expected.narrow(1, t, 1)));
}

TEST(PagedBackend, K31_retention_does_not_enter_bit_for_bit) {
  torch::manual_seed(8);
  const Shape shape;
  Stream stream(shape, 60);
  std::optional<Tensor> first;
  for (const double log_beta : {0.0, -1.0, -20.0}) {
    stream.log_beta.fill_(log_beta);
    KvCache cache(cache_config(shape, at::kFloat));
    PagedBackend backend(cache);
    const Tensor out = run_in_chunks(cache, backend, stream, 20);
    if (!first) first = out;
    EXPECT_TRUE(out.equal(*first));
  }
}

TEST(PagedBackend, a_pass_rolled_back_leaves_no_trace) {
  torch::manual_seed(9);
  const Shape shape;
  const Stream stream(shape, 50);
  const Stream other(shape, 50);
  KvCache cache(cache_config(shape, at::kFloat));
  PagedBackend backend(cache);
  const SequenceId id = cache.add_sequence();
  std::vector<Tensor> outs = {pass(cache, backend, {{id, &stream, 0, 30}})};
  const std::vector<Part> failed = {{id, &other, 30, 20}};
  ASSERT_TRUE(cache.reserve(id, 20));
  backend.forward(input_of(failed, 0, 0), batch_of(failed));
  cache.rollback(id);
  outs.push_back(pass(cache, backend, {{id, &stream, 30, 20}}));
  expect_near(torch::cat(outs, 1), run_dense(stream), 1e-5);
}

TEST(PagedBackend, activations_of_16_bits_are_taken) {
  torch::manual_seed(10);
  const Shape shape;
  Stream stream(shape, 40);
  const Tensor expected = run_dense(stream);
  stream.q = stream.q.to(torch::kBFloat16);
  KvCache cache(cache_config(shape, at::kFloat));
  PagedBackend backend(cache);
  const Tensor out = run_in_chunks(cache, backend, stream, 40);
  EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
  expect_near(out, expected, 0.05);
}

TEST(PagedBackend, misfitting_input_is_refused_with_the_reason) {
  const Shape shape;
  const Stream stream(shape, 4);
  KvCache cache(cache_config(shape, at::kFloat));
  PagedBackend backend(cache);
  const std::vector<Part> parts = {{cache.add_sequence(), &stream, 0, 4}};
  ASSERT_TRUE(cache.reserve(parts[0].id, 4));
  const auto refused = [&](const AttentionInput& input) {
    EXPECT_THROW(backend.forward(input, batch_of(parts)), Error);
  };
  AttentionInput input = input_of(parts, 0, 0);
  input.q = torch::zeros({4, 5, 16});
  refused(input);
  input = input_of(parts, 0, 0);
  input.k = torch::zeros({3, 2, 16});
  refused(input);
  input = input_of(parts, 0, 0);
  input.layer = kLayers;
  refused(input);
  input = input_of(parts, 0, 0);
  input.window = -1;
  refused(input);
}

}  // namespace
}  // namespace coppice
