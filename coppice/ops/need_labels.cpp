#include "coppice/ops/need_labels.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/ops/documents.h"
#include "coppice/ops/need_labels_kernels.h"
#include "coppice/ops/parallel.h"
#include "coppice/ops/retention_attention_kernels.h"

namespace coppice::ops {
namespace {

constexpr int64_t kBlockQueries = 256;

void check_arguments(const NeedInput& in) {
  if (in.q.dim() != 3 || in.k.dim() != 3 || in.v.sizes() != in.k.sizes() ||
      in.q.size(0) != in.k.size(0) || in.q.size(2) != in.k.size(2) || in.k.size(1) == 0 ||
      in.q.size(1) % in.k.size(1) != 0)
    fail_argument(
        "need labels: expected q [N, Hq, D] and k, v [N, Hkv, D] with Hq a multiple of Hkv, got "
        "{}, {} and {}",
        fmt::join(in.q.sizes(), "x"), fmt::join(in.k.sizes(), "x"), fmt::join(in.v.sizes(), "x"));
  if (!at::isFloatingType(in.q.scalar_type()) || in.k.scalar_type() != in.q.scalar_type() ||
      in.v.scalar_type() != in.q.scalar_type())
    fail_argument("need labels: expected q, k and v of one floating type, got {}, {} and {}",
                  at::toString(in.q.scalar_type()), at::toString(in.k.scalar_type()),
                  at::toString(in.v.scalar_type()));
  if (in.utility != NeedUtility::kAttention) {
    if (!in.output_weight.defined() || in.output_weight.dim() != 2 ||
        in.output_weight.size(1) != in.q.size(1) * in.q.size(2))
      fail_argument(
          "need labels: expected an output projection [C, {}], got {}", in.q.size(1) * in.q.size(2),
          in.output_weight.defined() ? fmt::format("{}", fmt::join(in.output_weight.sizes(), "x"))
                                     : "none");
    if (!in.residual_norm.defined() || in.residual_norm.numel() != in.q.size(0))
      fail_argument("need labels: expected {} norms of the residual stream, got {}", in.q.size(0),
                    in.residual_norm.defined() ? in.residual_norm.numel() : 0);
  }
  if (in.sensitivity.defined() && in.sensitivity.numel() != in.k.size(1))
    fail_argument("need labels: expected {} sensitivities, got {}", in.k.size(1),
                  in.sensitivity.numel());
  check_documents(in.cu_seqlens, in.q.size(0), "need labels");
  if (in.cut_at.empty()) return;
  if (in.cut_at.size() + 1 != in.cu_seqlens.size())
    fail_argument("need labels: expected a cut for each of {} documents, got {}",
                  in.cu_seqlens.size() - 1, in.cut_at.size());
  for (std::size_t b = 0; b < in.cut_at.size(); ++b)
    if (in.cut_at[b] < 0 || in.cut_at[b] > in.cu_seqlens[b + 1] - in.cu_seqlens[b])
      fail_argument("need labels: a cut at {} of a document of {} tokens", in.cut_at[b],
                    in.cu_seqlens[b + 1] - in.cu_seqlens[b]);
}

// First position of a document that cut c does not hold.
int64_t need_cut(const NeedInput& in, std::size_t document, int64_t cut) {
  if (!in.cut_at.empty()) return in.cut_at[document];
  const int64_t tokens = in.cu_seqlens[document + 1] - in.cu_seqlens[document];
  return tokens * (cut + 1) / (kNeedCuts + 1);
}

// What a utility is made of, besides P: utility^2 = f(P)^2 (of_query + of_entry weight), each
// [N, Hq], of_query times weight already.
struct Parts {
  at::Tensor of_query, of_entry, weight;
};

// |W x|^2 of each head, from the products of W with itself. x [N, Hq, D], gram [Hq, D, D].
at::Tensor projected(const at::Tensor& x, const at::Tensor& gram) {
  const at::Tensor heads_first = x.transpose(0, 1).to(gram.scalar_type());
  return (at::matmul(heads_first, gram) * heads_first).sum(-1).t().clamp_min(0);
}

Parts make_parts(const NeedInput& in, const RetentionOutput& attended) {
  const int64_t tokens = in.q.size(0), heads = in.q.size(1), width = in.q.size(2);
  const at::TensorOptions options = attended.lse.options();
  const at::Tensor zero = at::zeros({tokens, heads}, options);
  if (in.utility == NeedUtility::kAttention)
    return {at::ones({tokens, heads}, options), zero, zero};
  const at::Tensor each =
      in.output_weight.to(options).reshape({-1, heads, width}).permute({1, 0, 2});  // [Hq, C, D]
  const at::Tensor gram = at::matmul(each.transpose(1, 2), each);
  const at::Tensor norm = in.residual_norm.to(options).reshape({tokens, 1}).clamp_min(1e-12);
  Parts parts;
  parts.weight = (1.0 / norm.square()).expand({tokens, heads}).contiguous();
  parts.of_entry = projected(in.v.repeat_interleave(heads / in.k.size(1), 1), gram);
  parts.of_query =
      in.utility == NeedUtility::kLeaveOneOut ? projected(attended.out, gram) * parts.weight : zero;
  return parts;
}

RetentionInput undecayed(const NeedInput& in) {
  const auto type = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {in.q.contiguous(), in.k.contiguous(),
          in.v.contiguous(), at::zeros({in.k.size(0), in.k.size(1)}, in.k.options().dtype(type)),
          in.cu_seqlens,     in.scale};
}

// most [N, Hkv, slots]: utility^2, in slots as NeedKernels says -> logs.
NeedLabels finish(const NeedInput& in, const at::Tensor& most) {
  at::Tensor logs = at::log(most) * 0.5;
  if (in.sensitivity.defined())
    logs = logs + at::log(in.sensitivity.to(logs.options())).reshape({1, -1, 1});
  logs = logs.clamp_min(kNeedFloor).to(at::kFloat);
  NeedLabels labels{logs.slice(2, 0, kNeedAges).contiguous(),
                    logs.slice(2, kNeedAges, kNeedSlots).contiguous()};
  // Between cuts -> after each cut, and nothing for entries that came later.
  for (int64_t c = kNeedCuts - 2; c >= 0; --c) {
    const at::Tensor here = labels.cuts.select(2, c);
    here.copy_(at::maximum(here, labels.cuts.select(2, c + 1)));
  }
  for (std::size_t b = 0; b + 1 < in.cu_seqlens.size(); ++b)
    for (int64_t c = 0; c < kNeedCuts; ++c)
      labels.cuts.slice(0, in.cu_seqlens[b] + need_cut(in, b, c), in.cu_seqlens[b + 1])
          .select(2, c)
          .fill_(kNeedFloor);
  return labels;
}

// utility^2 [Hkv, T, L] of queries [begin, end) for keys [first, end); 0 for later keys.
at::Tensor utilities(const NeedInput& in, const RetentionOutput& attended, const Parts& parts,
                     int64_t first, int64_t begin, int64_t end) {
  const int64_t kv_heads = in.k.size(1);
  const auto type = attended.lse.scalar_type();
  const auto grouped = [&](const at::Tensor& x, int64_t from) {  // [N, Hq, X] -> [Hkv, G, T, X]
    const at::Tensor some = x.slice(0, from, end).to(type);
    return some.reshape({end - from, kv_heads, -1, x.size(2)}).permute({1, 2, 0, 3});
  };
  const auto queries = [&](const at::Tensor& x) { return grouped(x.unsqueeze(2), begin); };
  const at::Tensor keys = grouped(in.k, first);
  const at::Tensor logits = at::matmul(grouped(in.q, begin), keys.transpose(2, 3)) * in.scale;
  at::Tensor p = (logits - queries(attended.lse)).exp();
  if (in.utility == NeedUtility::kLeaveOneOut) p = p / (1.001 - p);
  const at::Tensor entry = grouped(parts.of_entry.unsqueeze(2), first).transpose(2, 3);
  const at::Tensor size = queries(parts.of_query) + queries(parts.weight) * entry;
  return (p * p * size).amax(1);
}

const NeedKernels* kernels_for(const NeedInput& in) {
  if (!in.q.device().is_cpu()) return nullptr;
  if (in.q.scalar_type() == at::kFloat) return float_need_kernels();
  if (in.q.scalar_type() == at::kBFloat16) return bfloat16_need_kernels();
  return nullptr;
}

// Queries and tables of all documents, each in whole tiles: [heads, padded tokens].
class Tables final {
 public:
  Tables(const NeedInput& in, const RetentionInput& source, const RetentionOutput& attended,
         const Parts& parts, const NeedKernels& kernels)
      : in_(in) {
    for (std::size_t b = 0; b + 1 < in.cu_seqlens.size(); ++b) {
      first_.push_back(padded_);
      padded_ += retention_tiles(in.cu_seqlens[b + 1] - in.cu_seqlens[b]) * kRetentionTile;
    }
    const int64_t heads = in.q.size(1), stride = heads * in.q.size(2);
    row_bytes_ = padded_width(in.q.size(2)) * kernels.element_bytes;
    lanes_ = at::empty({heads * padded_ * row_bytes_}, at::kByte);
    lse_ = padded(attended.lse * 1.4426950408889634, std::numeric_limits<float>::infinity());
    of_query_ = padded(parts.of_query, 0.0F);
    weight_ = padded(parts.weight, 0.0F);
    of_entry_ = padded(parts.of_entry, 0.0F);
    const char* const q = static_cast<const char*>(source.q.const_data_ptr());
    parallel_for(0, heads * documents(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / heads, h = i % heads, t = in.cu_seqlens[b];
        kernels.pack(q + (t * stride + h * in.q.size(2)) * kernels.element_bytes, stride,
                     in.cu_seqlens[b + 1] - t, in.q.size(2), lanes(b, h));
      }
    });
  }

  int64_t documents() const { return static_cast<int64_t>(first_.size()); }

  NeedHead of(int64_t document, int64_t head) const {
    const int64_t at = head * padded_ + first_[document];
    const auto part = [&](const at::Tensor& x) { return x.const_data_ptr<float>() + at; };
    return {lanes(document, head), part(lse_), part(of_query_), part(weight_), part(of_entry_)};
  }

 private:
  void* lanes(int64_t document, int64_t head) const {
    return lanes_.data_ptr<uint8_t>() + (head * padded_ + first_[document]) * row_bytes_;
  }

  at::Tensor padded(const at::Tensor& x, float filler) const {  // [N, Hq] -> [Hq, padded]
    const at::Tensor to = at::full({x.size(1), padded_}, filler, at::kFloat);
    for (int64_t b = 0; b < documents(); ++b) {
      const int64_t begin = in_.cu_seqlens[b], end = in_.cu_seqlens[b + 1];
      to.slice(1, first_[b], first_[b] + end - begin).copy_(x.slice(0, begin, end).t());
    }
    return to;
  }

  const NeedInput& in_;
  int64_t padded_ = 0, row_bytes_ = 0;
  std::vector<int64_t> first_;  // of each document
  at::Tensor lanes_, lse_, of_query_, weight_, of_entry_;
};

at::Tensor sweep(const NeedInput& in, const RetentionInput& source, const Tables& tables,
                 const NeedKernels& kernels) {
  const int64_t kv_heads = in.k.size(1), group = in.q.size(1) / kv_heads, width = in.k.size(2);
  const at::Tensor most = at::empty({in.q.size(0), kv_heads, kNeedSlots}, at::kFloat);
  struct Work {
    int64_t document, head, tile, tiles;
  };
  std::vector<Work> list;
  for (int64_t b = 0; b < tables.documents(); ++b) {
    const int64_t tiles = retention_tiles(in.cu_seqlens[b + 1] - in.cu_seqlens[b]);
    for (int64_t t = 0; t < tiles; ++t)
      for (int64_t h = 0; h < kv_heads; ++h) list.push_back({b, h, t, tiles});
  }
  const char* const k = static_cast<const char*>(source.k.const_data_ptr());
  const auto run = [&](const Work& work) {
    std::vector<NeedHead> heads;
    for (int64_t g = 0; g < group; ++g)
      heads.push_back(tables.of(work.document, work.head * group + g));
    const int64_t begin = in.cu_seqlens[work.document];
    const int64_t tokens = in.cu_seqlens[work.document + 1] - begin;
    const int64_t at = (begin * kv_heads + work.head) * width * kernels.element_bytes;
    int64_t cuts[kNeedCuts + 2] = {};
    for (int64_t c = 0; c < kNeedCuts; ++c)
      cuts[c + 1] = need_cut(in, static_cast<std::size_t>(work.document), c);
    cuts[kNeedCuts + 1] = tokens;
    std::vector<float> its(kRetentionTile * kNeedSlots);
    kernels.sweep({work.tile, tokens, k + at, kv_heads * width, width, static_cast<float>(in.scale),
                   in.utility == NeedUtility::kLeaveOneOut, heads.data(), group, cuts},
                  its.data());
    for (int64_t i = 0; i < std::min(kRetentionTile, tokens - work.tile * kRetentionTile); ++i)
      std::copy_n(
          its.data() + i * kNeedSlots, kNeedSlots,
          most.data_ptr<float>() +
              ((begin + work.tile * kRetentionTile + i) * kv_heads + work.head) * kNeedSlots);
  };
  parallel_for(0, static_cast<int64_t>(list.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run(list[i]);
  });
  return most;
}

}  // namespace

NeedLabels need_labels_reference(const NeedInput& in) {
  check_arguments(in);
  const c10::NoGradGuard no_gradient;
  const RetentionOutput attended = retention_forward_blocks(undecayed(in));
  const Parts parts = make_parts(in, attended);
  const at::TensorOptions options = attended.lse.options();
  const at::Tensor most = at::zeros({in.q.size(0), in.k.size(1), kNeedSlots}, options);
  for (std::size_t b = 0; b + 1 < in.cu_seqlens.size(); ++b)
    for (int64_t t = in.cu_seqlens[b]; t < in.cu_seqlens[b + 1]; t += kBlockQueries) {
      const int64_t first = in.cu_seqlens[b], last = in.cu_seqlens[b + 1];
      const int64_t end = std::min(t + kBlockQueries, last);
      const at::Tensor utility = utilities(in, attended, parts, first, t, end);
      const at::Tensor place = at::arange(t - first, end - first, options).unsqueeze(1);
      const at::Tensor age = place - at::arange(end - first, options).unsqueeze(0);
      for (int64_t slot = 0; slot < kNeedSlots; ++slot) {
        at::Tensor inside;
        if (slot < kNeedAges) {
          inside = age >= static_cast<double>(4 << slot);
          if (slot + 1 < kNeedAges) inside = inside & (age < static_cast<double>(8 << slot));
        } else {
          const int64_t c = slot - kNeedAges;
          const int64_t until = c + 1 < kNeedCuts ? need_cut(in, b, c + 1) : last - first;
          inside = (age >= 0) & (place >= static_cast<double>(need_cut(in, b, c))) &
                   (place < static_cast<double>(until));
        }
        const at::Tensor to = most.slice(0, first, end).select(2, slot);
        to.copy_(at::maximum(to, utility.masked_fill(inside.logical_not(), 0.0).amax(1).t()));
      }
    }
  return finish(in, most);
}

NeedLabels need_labels(const NeedInput& in) {
  check_arguments(in);
  const NeedKernels* const kernels = kernels_for(in);
  if (kernels == nullptr) return need_labels_reference(in);
  const c10::NoGradGuard no_gradient;
  const RetentionInput source = undecayed(in);
  const RetentionOutput attended = has_retention_tiles(source) ? retention_forward_tiles(source)
                                                               : retention_forward_blocks(source);
  const Parts parts = make_parts(in, attended);
  const Tables tables(in, source, attended, parts, *kernels);
  return finish(in, sweep(in, source, tables, *kernels));
}

}  // namespace coppice::ops
