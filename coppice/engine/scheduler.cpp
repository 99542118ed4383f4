#include "coppice/engine/scheduler.h"

#include <algorithm>

namespace coppice {
namespace {

int64_t pass_tokens(const SchedulerSequence& sequence) {
  return std::min(sequence.pending_tokens, sequence.chunk_tokens);
}

// What a waiting sequence adds to the blocks that are spoken for: those its session holds already
// count as idle.
int64_t new_blocks(const SchedulerSequence& sequence) {
  return std::max<int64_t>(0, sequence.worst_blocks - sequence.held_blocks);
}

class Planner final {
 public:
  Planner(const SchedulerConfig& config, int64_t free_blocks)
      : config_(config), free_blocks_(free_blocks) {}

  bool admit(const SchedulerSequence& sequence) {
    if (running_ >= config_.max_sequences || new_blocks(sequence) > free_blocks_) return false;
    free_blocks_ -= new_blocks(sequence);
    ++running_;
    plan_.admitted.push_back(sequence.id);
    return true;
  }

  void hold(const SchedulerSequence& sequence) {
    free_blocks_ -= sequence.worst_blocks;
    ++running_;
  }

  void run_decode(const SchedulerSequence& sequence) {
    if (!sequence.decoding || sequence.pending_tokens == 0) return;
    decodes_ = true;
    add(sequence);
  }

  void run_prefill(const SchedulerSequence& sequence) {
    if (sequence.decoding || sequence.pending_tokens == 0) return;
    const int64_t tokens = pass_tokens(sequence);
    const int64_t between = decodes_ ? config_.max_tokens_between - read_ : tokens;
    if (sequence.begun || (read_ == 0 && tokens > between)) {
      plan_.slice = {sequence.id, tokens, std::min(tokens, between)};
    } else {
      if (tokens > between) return;
      if (read_ > 0 && tokens_ + tokens > config_.max_batch_tokens) return;
      plan_.items.push_back({sequence.id, tokens});
    }
    tokens_ += tokens;
    read_ += tokens;
  }

  int64_t running() const { return running_; }
  StepPlan take() { return std::move(plan_); }

 private:
  void add(const SchedulerSequence& sequence) {
    plan_.items.push_back({sequence.id, pass_tokens(sequence)});
    tokens_ += pass_tokens(sequence);
  }

  const SchedulerConfig& config_;
  int64_t free_blocks_;
  int64_t running_ = 0;
  int64_t tokens_ = 0;
  int64_t read_ = 0;  // of them, of prompts
  bool decodes_ = false;
  StepPlan plan_;
};

// What is begun goes on first.
std::vector<const SchedulerSequence*> reading_order(std::span<const SchedulerSequence> running,
                                                    std::span<const SchedulerSequence> starting,
                                                    int64_t turn) {
  std::vector<const SchedulerSequence*> order;
  for (const SchedulerSequence& sequence : running) order.push_back(&sequence);
  for (const SchedulerSequence& sequence : starting) order.push_back(&sequence);
  if (turn % 2 == 1)
    std::ranges::stable_sort(order, {}, [](const auto* s) { return s->pending_tokens; });
  std::ranges::stable_partition(order, [](const auto* s) { return s->begun; });
  return order;
}

}  // namespace

StepPlan plan_step(const SchedulerConfig& config, int64_t total_blocks, int64_t idle_blocks,
                   std::span<const SchedulerSequence> running,
                   std::span<const SchedulerSequence> waiting, int64_t turn) {
  Planner planner(config, total_blocks - idle_blocks);
  for (const SchedulerSequence& sequence : running) planner.hold(sequence);
  std::size_t admitted = 0;
  while (admitted < waiting.size() && planner.admit(waiting[admitted])) ++admitted;
  const auto starting = waiting.first(admitted);
  for (const SchedulerSequence& sequence : running) planner.run_decode(sequence);
  for (const SchedulerSequence& sequence : starting) planner.run_decode(sequence);
  for (const SchedulerSequence* sequence : reading_order(running, starting, turn))
    planner.run_prefill(*sequence);
  StepPlan plan = planner.take();
  plan.stuck = planner.running() == 0 && !waiting.empty();
  return plan;
}

}  // namespace coppice
