#include "coppice/engine/request.h"

namespace coppice {

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kError:
      return "error";
  }
  fail(ErrorCode::kInternal, "unknown finish reason {}", static_cast<int>(reason));
}

Json to_json(const Usage& usage) {
  const KvUsage& kv = usage.kv;
  const TimingUsage& timing = usage.timing;
  return {{"tokens",
           {{"prompt", usage.tokens.prompt},
            {"generated", usage.tokens.generated},
            {"reused", usage.tokens.reused}}},
          {"kv",
           {{"policy", kv.policy},
            {"budget_entries", kv.budget_entries ? Json(*kv.budget_entries) : Json(nullptr)},
            {"kept_entries", kv.kept_entries},
            {"kept_image_entries", kv.kept_image_entries},
            {"evicted_entries", kv.evicted_entries},
            {"peak_entries", kv.peak_entries},
            {"bytes_bound", kv.bytes_bound},
            {"bytes_peak", kv.bytes_peak}}},
          {"timing",
           {{"load_s", timing.load_s},
            {"prefill_tokens_per_s", timing.prefill_tokens_per_s},
            {"decode_tokens_per_s", timing.decode_tokens_per_s},
            {"evict_share", timing.evict_share}}}};
}

Json result_json(std::string_view text, FinishReason reason, const Usage& usage) {
  Json result = {{"text", text}, {"finish_reason", to_string(reason)}};
  result.update(to_json(usage));
  return result;
}

}  // namespace coppice
