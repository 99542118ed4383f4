#include "coppice/engine/pass.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/engine/token_positions.h"
#include "coppice/models/decoder.h"

namespace coppice {
namespace {

TokenPositions positions_of(const KvCache& cache, const PassPart& part) {
  return token_positions(part.images, cache.tokens_seen(part.sequence),
                         static_cast<int64_t>(part.tokens.size()),
                         cache.next_rotary(part.sequence));
}

// [N], or [3, N] where a token of a picture stands in a grid.
at::Tensor make_positions(KvCache& cache, std::span<const PassPart> parts, int64_t tokens) {
  std::vector<TokenPositions> each;
  bool three_part = false;
  for (const PassPart& part : parts) {
    each.push_back(positions_of(cache, part));
    three_part = three_part || each.back().three_part();
  }
  at::Tensor positions =
      three_part ? at::empty({3, tokens}, at::kLong) : at::empty({tokens}, at::kLong);
  int64_t* const to = positions.mutable_data_ptr<int64_t>();
  int64_t row = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    TokenPositions& one = each[p];
    std::copy(one.time.begin(), one.time.end(), to + row);
    if (three_part) {
      const auto part_or_time = [&](const std::vector<int32_t>& part) -> const auto& {
        return one.three_part() ? part : one.time;
      };
      std::ranges::copy(part_or_time(one.height), to + tokens + row);
      std::ranges::copy(part_or_time(one.width), to + 2 * tokens + row);
    }
    row += static_cast<int64_t>(one.time.size());
    if (one.three_part()) cache.set_pass_rotary(parts[p].sequence, std::move(one.time), one.next);
  }
  return positions;
}

Batch make_batch(KvCache& cache, std::span<const PassPart> parts) {
  Batch batch;
  batch.cu_seqlens.push_back(0);
  for (const PassPart& part : parts) {
    batch.sequence_ids.push_back(part.sequence);
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + static_cast<int64_t>(part.tokens.size()));
  }
  at::Tensor ids = at::empty({batch.num_tokens()}, at::kLong);
  int64_t* id = ids.mutable_data_ptr<int64_t>();
  for (const PassPart& part : parts) id = std::copy(part.tokens.begin(), part.tokens.end(), id);
  const at::Tensor positions = make_positions(cache, parts, batch.num_tokens());
  batch.token_ids = ids.to(cache.config().device);
  batch.positions = positions.to(cache.config().device);
  return batch;
}

// [N, W]: what the layers behind the first add is zero.
at::Tensor wide_embeddings(Model& model, const at::Tensor& ids) {
  const at::Tensor narrow = model.embed(ids);
  const int64_t width = model.args().embedding_width();
  if (width == narrow.size(1)) return narrow.clone();
  at::Tensor wide = at::zeros({ids.size(0), width}, narrow.options());
  wide.narrow(1, 0, narrow.size(1)).copy_(narrow);
  return wide;
}

// Puts pictures where they stand: the batch then holds embeddings, and says which are pictures'.
void put_images(Model& model, const KvCache& cache, std::span<const PassPart> parts, Batch& batch) {
  int64_t row = 0;  // of the batch, where the part begins
  for (const PassPart& part : parts) {
    const auto count = static_cast<int64_t>(part.tokens.size());
    const int64_t first = cache.tokens_seen(part.sequence);
    for (const ImageSpan& span : part.images) {
      const int64_t begin = std::max(first, span.begin);
      const int64_t tokens = std::min(first + count, span.end()) - begin;
      if (tokens <= 0) continue;
      if (!batch.embeddings.defined()) {
        batch.embeddings = wide_embeddings(model, batch.token_ids);
        batch.modality =
            at::zeros({batch.num_tokens()}, batch.token_ids.options().dtype(at::kByte));
      }
      COPPICE_CHECK(span.embeddings.defined(), "a picture is to be read again");
      const int64_t at = row + begin - first;
      batch.embeddings.narrow(0, at, tokens)
          .copy_(span.embeddings.narrow(0, begin - span.begin, tokens));
      batch.modality.narrow(0, at, tokens).fill_(static_cast<int64_t>(Modality::kImage));
    }
    row += count;
  }
  if (batch.embeddings.defined()) batch.token_ids = at::Tensor();
}

bool wants_queries(const PassPart& part) {
  return part.policy->bounded() && part.policy->needs().queries;
}

// Shows policies the queries of a pass as long as it lives.
class Observation final {
 public:
  Observation(const Model& model, PagedBackend& backend, KvCache& cache,
              std::span<const PassPart> parts, const Batch& batch)
      : backend_(backend) {
    if (std::none_of(parts.begin(), parts.end(), wants_queries)) return;
    at::Tensor inv_freq, turns;
    if (std::any_of(parts.begin(), parts.end(),
                    [](const PassPart& part) { return part.policy->needs().rope; })) {
      const ops::RopeTable table = models::make_rope_table(model.args());
      inv_freq = table.inv_freq();
      turns = table.turns(batch.positions.to(at::kCPU));
    }
    backend.set_observer(
        [&cache, parts, inv_freq, turns, rows = batch.cu_seqlens](const PagedBackend::Seen& seen) {
          const PassPart& part = parts[seen.index];
          if (!wants_queries(part)) return;
          part.policy->observe(
              cache, part.sequence,
              {.layer = seen.layer,
               .q = seen.q,
               .turns =
                   turns.defined() ? turns.slice(0, rows[seen.index], rows[seen.index + 1]) : turns,
               .inv_freq = inv_freq},
              seen.scale);
        });
  }
  ~Observation() { backend_.set_observer({}); }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

 private:
  PagedBackend& backend_;
};

}  // namespace

Pass::Pass(Model& model, PagedBackend& backend, KvCache& cache, std::vector<PassPart> parts)
    : model_(model), backend_(backend), cache_(cache), parts_(std::move(parts)) {
  try {
    reserve();
    Batch batch = make_batch(cache, parts_);
    put_images(model, cache, parts_, batch);
    state_ = model.begin(std::move(batch));
  } catch (...) {
    roll_back();
    throw;
  }
}

Pass::~Pass() { roll_back(); }

void Pass::reserve() {
  for (const PassPart& part : parts_) {
    const auto tokens = static_cast<int64_t>(part.tokens.size());
    if (!cache_.reserve(part.sequence, tokens)) {
      fail(ErrorCode::kCapacity, "KV cache: no room for {} tokens, {} of {} blocks are free",
           tokens, cache_.free_blocks(), cache_.config().max_blocks);
    }
    ++reserved_;
  }
}

void Pass::roll_back() {
  for (; reserved_ > 0; --reserved_) cache_.rollback(parts_[reserved_ - 1].sequence);
}

bool Pass::advance(int64_t layers) {
  const Observation observation(model_, backend_, cache_, parts_, state_.batch);
  return model_.advance(state_, backend_, layers);
}

at::Tensor Pass::finish() {
  at::Tensor hidden = model_.finish(state_);
  COPPICE_CHECK(hidden.dim() == 2 && hidden.size(0) == state_.batch.num_tokens(),
                "a model gave hidden states of a wrong shape for {} tokens",
                state_.batch.num_tokens());
  reserved_ = 0;
  return hidden;
}

at::Tensor forward_pass(Model& model, PagedBackend& backend, KvCache& cache,
                        std::span<const PassPart> parts) {
  Pass pass(model, backend, cache, {parts.begin(), parts.end()});
  while (!pass.advance(model.args().num_hidden_layers)) {
  }
  return pass.finish();
}

int64_t commit_pass(KvCache& cache, const PassPart& part) {
  part.policy->note_appended(cache, part.sequence);
  cache.commit(part.sequence);
  return part.policy->evict(cache, part.sequence);
}

}  // namespace coppice
