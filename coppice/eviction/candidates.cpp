#include "coppice/eviction/candidates.h"

#include "coppice/eviction/candidates_inl.h"
#include "coppice/ops/cpu_features.h"

namespace coppice {
namespace {

// The bits of a float as an integer of the same order.
int32_t to_rank(float score) {
  const auto bits = std::bit_cast<int32_t>(score + 0.0f);  // the sum makes -0 a +0
  return score == score ? bits ^ ((bits >> 31) & INT32_MAX) : INT32_MIN;
}

struct PlainLanes {
  static uint32_t look(const LookTask& task, int64_t slot, int64_t held, BlockLook& out) {
    uint32_t hits = 0;
    out.low = std::numeric_limits<float>::infinity();
    out.fall = 0.0f;
    for (int64_t i = 0; i < held; ++i) {
      const int32_t position = task.positions[slot + i];
      if (position < task.sinks) continue;
      if (!task.pins.empty() && is_pinned(task.pins, position)) continue;
      const float age = static_cast<float>(task.now - position) + task.form.age_offset;
      const float slope = task.form.slope_is_log_beta ? task.log_betas[slot + i] : task.form.slope;
      const float score = age * slope + task.form.aux_weight * task.aux[slot + i];
      out.low = score >= out.low ? out.low : score;
      if (score != score) out.low = -std::numeric_limits<float>::infinity();
      out.fall = std::min(out.fall, slope);
      out.ranks[i] = to_rank(score);
      if (position < task.recent && out.ranks[i] <= task.cut) hits |= 1U << i;
    }
    return hits;
  }

  static uint32_t screen(const LookTask& task, const BlockTable& row, const RowBounds& bounds,
                         int64_t first, int64_t count) {
    uint32_t look = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto b = static_cast<std::size_t>(first + i);
      const float low = bounds.low[b];
      const float bound = low + static_cast<float>(task.now - bounds.newest[b]) * bounds.fall[b];
      const float slack = 1e-6f * (std::abs(bound) + std::abs(low) + 16.0f);
      const bool clear = bound - slack > task.cut_score && bounds.stamps[b] == row.stamps[b];
      look |= clear ? 0U : 1U << i;
    }
    return look;
  }
};

void collect_plain(const LookTask& task, const CandidateRows& rows) {
  collect_with<PlainLanes>(task, rows);
}

CollectFn choose_collect() {
  const bool wide = ops::cpu_level() >= ops::CpuLevel::kAvx512 && avx512_collect() != nullptr;
  return wide ? avx512_collect() : collect_plain;
}

}  // namespace

void RowBounds::resize(std::size_t blocks) {
  if (stamps.size() == blocks) return;
  stamps.resize(blocks, 0);
  low.resize(blocks);
  fall.resize(blocks);
  newest.resize(blocks);
}

int32_t score_rank(float score) { return to_rank(score); }

void collect_candidates(const Contest& contest, int32_t cut, const CandidateRows& rows) {
  choose_collect()(LookTask(contest, cut), rows);
}

}  // namespace coppice
