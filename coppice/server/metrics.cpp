#include "coppice/server/metrics.h"

namespace coppice {

std::string metrics_text(const LoopStats& stats, const std::map<int, int64_t>& replies) {
  std::string text;
  const auto add = [&text](const char* name, const char* type, const char* help, auto value) {
    text += fmt::format("# HELP coppice_{0} {1}\n# TYPE coppice_{0} {2}\ncoppice_{0} {3}\n", name,
                        help, type, value);
  };
  const auto bytes = [&stats](int64_t blocks) { return blocks * stats.block_bytes; };
  add("kv_bytes", "gauge", "Bytes of KV blocks in use, snapshots included.",
      bytes(stats.blocks_in_use));
  add("kv_bytes_peak", "gauge", "Most bytes of KV blocks in use at once.",
      bytes(stats.blocks_peak));
  add("kv_bytes_bound", "gauge", "Bytes of the KV pool: never passed.", bytes(stats.blocks_total));
  add("kv_blocks_free", "gauge", "Free blocks of the KV pool.",
      stats.blocks_total - stats.blocks_in_use);
  add("snapshots", "gauge", "States of prompt beginnings that are kept.", stats.snapshots);
  add("snapshot_bytes", "gauge", "Bytes of KV blocks that snapshots hold.",
      bytes(stats.snapshot_blocks));
  add("requests_running", "gauge", "Requests in the engine.", stats.running);
  add("requests_squeezed", "gauge", "Of them, those with less than the budget they asked for.",
      stats.squeezed);
  add("requests_waiting", "gauge", "Requests in the queue.", stats.waiting);
  add("requests_started_total", "counter", "Requests that left the queue.", stats.started);
  add("requests_finished_total", "counter", "Requests that were answered.", stats.finished);
  add("requests_squeezed_total", "counter",
      "Requests that have ended and had less than the budget they asked for at a time.",
      stats.ever_squeezed);
  add("requests_cancelled_total", "counter", "Requests whose client went.", stats.cancelled);
  add("requests_failed_total", "counter", "Requests that ended with an error.", stats.failed);
  add("requests_refused_total", "counter", "Calls refused because the queue was full.",
      stats.refused);
  add("prompt_tokens_total", "counter", "Tokens of prompts, reused ones included.",
      stats.prompt_tokens);
  add("reused_tokens_total", "counter", "Tokens of prompts that a snapshot had.",
      stats.reused_tokens);
  add("generated_tokens_total", "counter", "Tokens generated.", stats.generated_tokens);
  add("evicted_entries_total", "counter", "KV entries evicted.", stats.evicted_entries);
  add("steps_total", "counter", "Passes of the model.", stats.steps);
  add("step_seconds_total", "counter", "Time spent in passes.", stats.step_seconds);
  text +=
      "# HELP coppice_first_token_seconds From a request's arrival to its first token.\n"
      "# TYPE coppice_first_token_seconds summary\n";
  text += fmt::format("coppice_first_token_seconds_sum {}\ncoppice_first_token_seconds_count {}\n",
                      stats.first_token_seconds, stats.first_tokens);
  text +=
      "# HELP coppice_http_replies_total Replies by HTTP status.\n"
      "# TYPE coppice_http_replies_total counter\n";
  for (const auto& [status, count] : replies) {
    text += fmt::format("coppice_http_replies_total{{status=\"{}\"}} {}\n", status, count);
  }
  return text;
}

}  // namespace coppice
