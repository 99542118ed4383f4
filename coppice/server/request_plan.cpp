#include "coppice/server/request_plan.h"

#include <algorithm>
#include <limits>

#include "coppice/core/error.h"
#include "coppice/models/load.h"
#include "coppice/models/model.h"

namespace coppice {
namespace {

constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max();

// As many as positions allow, then as many as the pool holds.
int64_t most_new_tokens(const Engine& engine, const Request& request, int64_t prompt) {
  const int64_t range = engine.model().args().max_position_embeddings;
  const int64_t most =
      engine.config().compact_positions ? std::min(range, kMaxPositions - prompt) : range - prompt;
  int64_t low = 1, high = std::max<int64_t>(1, most);
  while (low < high) {  // the last token drawn is not read
    const int64_t middle = low + (high - low + 1) / 2;
    if (worst_blocks_under(engine, request, *request.eviction, prompt + middle - 1) <=
        engine.config().max_blocks) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

void check_prompt(const Request& request, const ModelArgs& args, bool can_be_empty) {
  if (request.prompt.empty() && !can_be_empty) {
    fail_argument("the prompt is empty, expected at least one token");
  }
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= args.vocab_size) {
      fail_argument("token {} of the prompt is {}, expected 0 to {} (the vocabulary)", i,
                    request.prompt[i], args.vocab_size - 1);
    }
  }
}

}  // namespace

int64_t worst_blocks_under(const Engine& engine, const Request& request,
                           const EvictionConfig& eviction, int64_t total_tokens) {
  return worst_case_blocks(engine.cache().config(), eviction,
                           request.chunk_tokens.value_or(engine.config().chunk_tokens),
                           total_tokens);
}

RequestPlan plan_request(const Engine& engine, Request& request) {
  const EngineConfig& config = engine.config();
  const ModelArgs& args = engine.model().args();
  validate(request.sampling, args.vocab_size);
  check_prompt(request, args, config.begin_token_id.has_value());
  const EvictionPolicy policy(request.eviction.value_or(config.eviction), engine.cache().config());
  policy.check_gate_kind(engine.model().gate_kind());
  request.eviction = policy.config();
  RequestPlan plan;
  plan.prompt_tokens = std::max<int64_t>(1, static_cast<int64_t>(request.prompt.size()));
  const int64_t limit = config.compact_positions ? kMaxPositions : args.max_position_embeddings;
  const int64_t wanted = request.sampling.max_tokens.value_or(1);
  if (plan.prompt_tokens > limit || wanted > limit - plan.prompt_tokens) {
    fail(ErrorCode::kCapacity,
         "the prompt has {} tokens and {} are to be generated; the model has positions for {} in "
         "all",
         plan.prompt_tokens, wanted, limit);
  }
  if (!request.sampling.max_tokens) {
    request.sampling.max_tokens = most_new_tokens(engine, request, plan.prompt_tokens);
  }
  plan.total_tokens = plan.prompt_tokens + std::max<int64_t>(0, *request.sampling.max_tokens - 1);
  plan.worst_blocks = worst_blocks_under(engine, request, *request.eviction, plan.total_tokens);
  if (plan.worst_blocks > config.max_blocks) {
    fail(ErrorCode::kCapacity,
         "{} tokens of prompt and {} to generate may need {} bytes of KV cache; the bound is {}; "
         "ask for a smaller kv.budget or fewer tokens",
         plan.prompt_tokens, *request.sampling.max_tokens,
         plan.worst_blocks * engine.cache().config().block_bytes(), engine.cache().bytes_bound());
  }
  return plan;
}

}  // namespace coppice
