#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/parallel.h"
#include "coppice/ops/retention_attention_kernels.h"

namespace coppice::ops {
namespace {

constexpr float kLog2E = 1.44269504088896F;
// A key that is gone at age 1; finite, so that age 0 times it is 0.
constexpr float kGone = -1e30F;

const RetentionKernels* kernels_for(const RetentionInput& input) {
  const at::ScalarType type = input.q.scalar_type();
  if (type == at::kFloat) return float_retention_kernels(input.has_cut());
  if (type == at::kBFloat16) return bfloat16_retention_kernels(input.has_cut());
  return nullptr;
}

char* bytes_of(const at::Tensor& x) { return static_cast<char*>(x.data_ptr()); }

// Keys of all documents, packed: each document takes whole tiles.
class PackedKeys final {
 public:
  PackedKeys(const RetentionInput& in, const RetentionKernels& kernels, bool backward)
      : in_(in), heads_(in.k.size(1)) {
    for (std::size_t b = 0; b + 1 < in.cu_seqlens.size(); ++b) {
      first_tile_.push_back(tiles_);
      tiles_ += retention_tiles(in.cu_seqlens[b + 1] - in.cu_seqlens[b]);
    }
    block_ = kRetentionTile * padded_width(in.k.size(2)) * kernels.element_bytes;
    const auto room = [&](bool wanted) {
      return wanted ? at::empty({heads_ * tiles_ * block_}, at::kByte) : at::Tensor();
    };
    k_rows_ = room(true);
    k_units_ = room(backward);
    v_rows_ = room(backward);
    v_units_ = room(!backward);
    fade_ = at::zeros({heads_ * tiles_ * kRetentionTile}, at::kFloat);
    const int64_t documents = static_cast<int64_t>(first_tile_.size());
    parallel_for(0, documents * heads_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) fill(kernels, i / heads_, i % heads_);
    });
  }

  int64_t tiles() const { return tiles_; }
  int64_t first_tile(int64_t document) const { return first_tile_[document]; }

  RetentionKeys of(int64_t document, int64_t head) const {
    const int64_t at = (head * tiles_ + first_tile_[document]) * block_;
    const auto part = [&](const at::Tensor& x) { return x.defined() ? bytes_of(x) + at : nullptr; };
    return {in_.cu_seqlens[document + 1] - in_.cu_seqlens[document],
            in_.k.size(2),
            part(k_rows_),
            part(k_units_),
            part(v_rows_),
            part(v_units_),
            fade_of(document, head),
            in_part(in_.k, document, head),
            in_part(in_.v, document, head),
            heads_ * in_.k.size(2)};
  }

 private:
  const void* in_part(const at::Tensor& x, int64_t document, int64_t head) const {
    const int64_t at = (in_.cu_seqlens[document] * heads_ + head) * x.size(2);
    return bytes_of(x) + at * x.element_size();
  }
  float* fade_of(int64_t document, int64_t head) const {
    return fade_.data_ptr<float>() + (head * tiles_ + first_tile_[document]) * kRetentionTile;
  }

  void fill(const RetentionKernels& kernels, int64_t document, int64_t head) const {
    const RetentionKeys to = of(document, head);
    const int64_t begin = in_.cu_seqlens[document];
    kernels.pack(to.k, to.stride, to.tokens, to.width, const_cast<void*>(to.k_rows),
                 const_cast<void*>(to.k_units));
    kernels.pack(to.v, to.stride, to.tokens, to.width, const_cast<void*>(to.v_rows),
                 const_cast<void*>(to.v_units));
    const float* log_beta = in_.log_beta.const_data_ptr<float>() + begin * heads_ + head;
    float* const fade = fade_of(document, head);
    for (int64_t t = 0; t < to.tokens; ++t) {
      const float here = log_beta[t * heads_];
      fade[t] = in_.has_cut() ? std::min(-here, -kGone) : std::max(here * kLog2E, kGone);
    }
  }

  const RetentionInput& in_;
  const int64_t heads_;
  int64_t tiles_ = 0, block_ = 0;
  std::vector<int64_t> first_tile_;  // of each document
  at::Tensor k_rows_, k_units_, v_rows_, v_units_, fade_;
};

RetentionQueries queries_of(const RetentionInput& in, const RetentionOutput& output,
                            int64_t document, int64_t head) {
  const int64_t heads = in.q.size(1), width = in.q.size(2), begin = in.cu_seqlens[document];
  const int64_t at = (begin * heads + head) * width * in.q.element_size();
  return {bytes_of(in.q) + at,
          heads * width,
          static_cast<float>(in.scale),
          bytes_of(output.out) + at,
          heads * width,
          output.lse.data_ptr<float>() + begin * heads + head,
          heads,
          in.has_cut() ? in.pressure.const_data_ptr<float>() + begin : nullptr,
          in.squarings};
}

// Tiles [begin, end) of the queries of one document and head.
struct Work {
  int64_t document, head, begin, end, cost;
  int64_t part = 0;
};

void longest_first(std::vector<Work>& list) {
  std::stable_sort(list.begin(), list.end(),
                   [](const Work& a, const Work& b) { return a.cost > b.cost; });
}

// The queries of a document fall into parts of about equal work, each of which sums the gradient of
// the keys before it by itself. Their number depends on the length alone.
constexpr int64_t kParts = 2;
constexpr int64_t kLeastTiles = 8;  // of a document that is cut

int64_t part_end(int64_t tiles, int64_t part) {
  if (tiles < kLeastTiles) return part + 1 == kParts ? tiles : 0;
  const double share = static_cast<double>(part + 1) / static_cast<double>(kParts);
  return std::llround(static_cast<double>(tiles) * std::sqrt(share));
}

// KV heads are worked on together as far as the sums of their parts stay below this; at least one.
constexpr int64_t kSumBytes = 64 << 20;

struct HeadRange {
  int64_t begin, end;  // KV heads, worked on together
};

// One backward pass; what it reads and writes.
struct Backward {
  const RetentionInput& in;
  const RetentionOutput& output;
  const at::Tensor& gradient;
  const RetentionKernels& kernels;
  const PackedKeys& keys;
  const RetentionGradients& to;
  at::Tensor k, v;      // [heads of a range, parts, padded tokens, P]
  at::Tensor log_beta;  // [heads of a range, parts, padded tokens]
  at::Tensor pressure;  // [Hq, N], with a cut

  int64_t group() const { return in.q.size(1) / in.k.size(1); }
  // Place of a document's first key in the sums of one query head of the range and part.
  int64_t row(int64_t head, int64_t part, int64_t document) const {
    return ((head * kParts + part) * keys.tiles() + keys.first_tile(document)) * kRetentionTile;
  }
};

// The queries of one part; work.head counts from the range's first query head.
void run_part(const Backward& b, const HeadRange& range, const Work& work) {
  const int64_t head = range.begin * b.group() + work.head;
  const int64_t width = b.in.q.size(2), padded = padded_width(width);
  const RetentionQueries queries = queries_of(b.in, b.output, work.document, head);
  const int64_t at =
      (b.in.cu_seqlens[work.document] * b.in.q.size(1) + head) * width * b.kernels.element_bytes;
  const int64_t row = b.row(work.head, work.part, work.document);
  b.kernels.backward(b.keys.of(work.document, head / b.group()), queries, work.begin, work.end,
                     {bytes_of(b.gradient) + at, queries.out, bytes_of(b.to.q) + at,
                      b.k.data_ptr<float>() + row * padded, b.v.data_ptr<float>() + row * padded,
                      b.log_beta.data_ptr<float>() + row,
                      b.in.has_cut() ? b.pressure.data_ptr<float>() + head * b.in.q.size(0) +
                                           b.in.cu_seqlens[work.document]
                                     : nullptr});
}

// Gradient of the keys of one tile and KV head: over the group and its parts, in their order.
void add_parts(const Backward& b, const HeadRange& range, const Work& work) {
  const int64_t width = b.in.k.size(2), padded = padded_width(width), kv_heads = b.in.k.size(1);
  const int64_t begin = b.in.cu_seqlens[work.document];
  const int64_t tokens = b.in.cu_seqlens[work.document + 1] - begin;
  const int64_t tiles = retention_tiles(tokens), first = work.begin * kRetentionTile;
  const auto scale = static_cast<float>(b.in.scale);
  for (int64_t t = first; t < std::min(first + kRetentionTile, tokens); ++t) {
    const int64_t row = (begin + t) * kv_heads + work.head;
    float* const to_k = b.to.k.data_ptr<float>() + row * width;
    float* const to_v = b.to.v.data_ptr<float>() + row * width;
    float to_fade = 0;
    std::fill_n(to_k, width, 0.0F);
    std::fill_n(to_v, width, 0.0F);
    for (int64_t g = 0; g < b.group(); ++g)
      for (int64_t p = 0; p < kParts; ++p) {
        if (part_end(tiles, p) <= work.begin) continue;  // its queries do not see this key
        const int64_t at = b.row((work.head - range.begin) * b.group() + g, p, work.document) + t;
        const float* k = b.k.const_data_ptr<float>() + at * padded;
        const float* v = b.v.const_data_ptr<float>() + at * padded;
        for (int64_t d = 0; d < width; ++d) to_k[d] += scale * k[d];
        for (int64_t d = 0; d < width; ++d) to_v[d] += v[d];
        to_fade += b.log_beta.const_data_ptr<float>()[at];
      }
    b.to.log_beta.data_ptr<float>()[row] = to_fade;
  }
}

void run_range(const Backward& b, const HeadRange& range) {
  std::vector<Work> parts, ends;
  for (int64_t d = 0; d + 1 < static_cast<int64_t>(b.in.cu_seqlens.size()); ++d) {
    const int64_t tiles = retention_tiles(b.in.cu_seqlens[d + 1] - b.in.cu_seqlens[d]);
    for (int64_t h = 0; h < (range.end - range.begin) * b.group(); ++h)
      for (int64_t p = 0, from = 0; p < kParts; from = part_end(tiles, p++)) {
        const int64_t until = part_end(tiles, p);
        if (from < until) parts.push_back({d, h, from, until, until * until - from * from, p});
      }
    for (int64_t h = range.begin; h < range.end; ++h)
      for (int64_t t = 0; t < tiles; ++t) ends.push_back({d, h, t, t + 1, 1});
  }
  longest_first(parts);
  parallel_for(0, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_part(b, range, parts[i]);
  });
  parallel_for(0, static_cast<int64_t>(ends.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) add_parts(b, range, ends[i]);
  });
}

}  // namespace

bool has_retention_tiles(const RetentionInput& input) {
  return input.q.device().is_cpu() && kernels_for(input) != nullptr;
}

RetentionOutput retention_forward_tiles(const RetentionInput& in) {
  const RetentionKernels& kernels = *kernels_for(in);
  const int64_t group = in.q.size(1) / in.k.size(1);
  RetentionOutput result;
  result.out = at::empty_like(in.q);
  result.lse = at::empty({in.q.size(0), in.q.size(1)}, at::kFloat);
  const PackedKeys keys(in, kernels, false);
  std::vector<Work> list;
  for (int64_t b = 0; b + 1 < static_cast<int64_t>(in.cu_seqlens.size()); ++b)
    for (int64_t h = 0; h < in.q.size(1); ++h)
      for (int64_t t = 0; t < retention_tiles(in.cu_seqlens[b + 1] - in.cu_seqlens[b]); ++t)
        list.push_back({b, h, t, t + 1, t + 1});
  longest_first(list);
  parallel_for(0, static_cast<int64_t>(list.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Work& work = list[i];
      kernels.forward(keys.of(work.document, work.head / group),
                      queries_of(in, result, work.document, work.head), work.begin);
    }
  });
  return result;
}

RetentionGradients retention_backward_tiles(const RetentionInput& in, const RetentionOutput& output,
                                            const at::Tensor& gradient) {
  const RetentionKernels& kernels = *kernels_for(in);
  const PackedKeys keys(in, kernels, true);
  RetentionGradients to{at::empty_like(in.q),
                        at::empty_like(in.k, at::kFloat),
                        at::empty_like(in.v, at::kFloat),
                        at::empty_like(in.log_beta),
                        {}};
  const int64_t kv_heads = in.k.size(1), padded = padded_width(in.q.size(2));
  const int64_t rows =
      in.q.size(1) / kv_heads * kParts * keys.tiles() * kRetentionTile;  // a KV head
  const int64_t bytes = std::max<int64_t>(rows * (2 * padded + 1) * 4, 1);
  const int64_t together = std::clamp<int64_t>(kSumBytes / bytes, 1, kv_heads);
  const Backward backward{
      in,
      output,
      gradient,
      kernels,
      keys,
      to,
      at::empty({together * rows * padded}, at::kFloat),
      at::empty({together * rows * padded}, at::kFloat),
      at::empty({together * rows}, at::kFloat),
      in.has_cut() ? at::empty({in.q.size(1), in.q.size(0)}, at::kFloat) : at::Tensor()};
  for (int64_t h = 0; h < kv_heads; h += together)
    run_range(backward, {h, std::min(h + together, kv_heads)});
  to.k = to.k.to(in.k.scalar_type());
  to.v = to.v.to(in.v.scalar_type());
  if (in.has_cut()) finish_cut_gradients(in, backward.pressure.sum(0), to);
  return to;
}

}  // namespace coppice::ops
