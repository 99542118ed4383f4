#include "coppice/server/generation.h"

#include <algorithm>
#include <charconv>

#include "coppice/cache/memory_plan.h"
#include "coppice/server/api_error.h"

namespace coppice {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

void read_stops(Fields& fields, SamplingParams& sampling) {
  if (const Json* stop = fields.find("stop")) {
    const auto add = [&sampling](const Json& text) {
      if (!text.is_string()) refuse_field("stop", "expected a string or a list of strings");
      if (text.get_ref<const std::string&>().empty()) refuse_field("stop", "must not be empty");
      sampling.stop.push_back(text.get<std::string>());
    };
    if (stop->is_array()) {
      for (const Json& text : *stop) add(text);
    } else {
      add(*stop);
    }
  }
  if (const Json* ids = fields.find("stop_token_ids")) {
    if (!ids->is_array()) refuse_field("stop_token_ids", "expected a list of token ids");
    for (const Json& id : *ids) {
      sampling.stop_token_ids.push_back(read_integer(id, "stop_token_ids", 0, kMost));
    }
  }
}

void read_bias(Fields& fields, SamplingParams& sampling) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) refuse_field("logit_bias", "expected an object of token id to number");
  for (const auto& [key, value] : bias->items()) {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || key.empty()) {
      refuse_field("logit_bias", "expected a token id as key, got {}", in_quotes(key));
    }
    if (!value.is_number()) {
      refuse_field("logit_bias", "expected a number from -100 to 100 for token {}", id);
    }
    sampling.logit_bias[id] = value.get<double>();
  }
}

std::optional<int64_t> read_max_tokens(Fields& fields) {
  const auto old_name = fields.integer("max_tokens", 0, kMost);
  const auto new_name = fields.integer("max_completion_tokens", 0, kMost);
  if (old_name && new_name && *old_name != *new_name) {
    refuse_field("max_completion_tokens", "max_tokens says {} and this says {}", *old_name,
                 *new_name);
  }
  return new_name ? new_name : old_name;
}

KvBudget read_budget(const Json& value) {
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    try {
      const KvBudget budget = KvBudget::parse(text);
      if (budget.unit != KvBudget::Unit::kEntries) return budget;
    } catch (const Error&) {
    }
    refuse_field("kv.budget",
                 "expected a whole number of entries per KV head, or \"64MiB\", \"12.5%\" or "
                 "\"full\", got the string {}",
                 in_quotes(text));
  }
  KvBudget budget;
  budget.unit = KvBudget::Unit::kEntries;
  budget.entries = read_integer(value, "kv.budget", 1, kMost);
  return budget;
}

std::vector<int64_t> read_messages(const Json& list, const char* field) {
  if (!list.is_array()) refuse_field(field, "expected a list of message numbers, from 0 on");
  std::vector<int64_t> messages;
  for (const Json& number : list) messages.push_back(read_integer(number, field, 0, kMost));
  std::sort(messages.begin(), messages.end());
  messages.erase(std::unique(messages.begin(), messages.end()), messages.end());
  return messages;
}

void read_stream_options(Fields& fields, Generation& generation) {
  const Json* object = fields.find("stream_options");
  if (object == nullptr) return;
  if (!generation.stream) refuse_field("stream_options", "goes with stream alone");
  Fields options(*object, "stream_options");
  generation.include_usage = options.boolean("include_usage").value_or(false);
  options.finish();
}

}  // namespace

void read_kv(Fields& outer, Generation& generation) {
  KvWish& wish = generation.kv;
  const Json* object = outer.find("kv");
  if (object == nullptr) return;
  Fields fields(*object, "kv");
  for (const auto& [name, value] : object->items()) {
    if (value.is_null()) {
      refuse_field("kv." + name.substr(0, 20), "expected a value, got null; leave it out");
    }
  }
  if (const Json* budget = fields.find("budget")) wish.budget = read_budget(*budget);
  wish.min_budget = fields.integer("min_budget", 1, kMost);
  wish.policy = fields.text("policy");
  wish.sinks = fields.integer("sinks", 0, kMost);
  wish.recent = fields.integer("recent", 0, kMost);
  if (const Json* keep = fields.find("keep")) wish.keep = read_messages(*keep, "kv.keep");
  if (const Json* mark = fields.find("mark")) wish.mark = read_messages(*mark, "kv.mark");
  generation.trace = fields.boolean("trace").value_or(false);
  if (generation.trace && (!generation.stream || generation.n != 1)) {
    refuse_field("kv.trace", "goes with stream and n = 1 alone");
  }
  fields.finish();
}

Generation read_generation(Fields& fields) {
  Generation result;
  SamplingParams& sampling = result.sampling;
  sampling.temperature = fields.number("temperature").value_or(1.0);
  sampling.top_p = fields.number("top_p").value_or(1.0);
  sampling.min_p = fields.number("min_p").value_or(0.0);
  sampling.top_k = fields.integer("top_k").value_or(0);
  sampling.repetition_penalty = fields.number("repetition_penalty").value_or(1.0);
  sampling.presence_penalty = fields.number("presence_penalty").value_or(0.0);
  sampling.frequency_penalty = fields.number("frequency_penalty").value_or(0.0);
  if (const auto seed = fields.integer("seed")) sampling.seed = static_cast<uint64_t>(*seed);
  sampling.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  sampling.max_tokens = read_max_tokens(fields);
  read_stops(fields, sampling);
  read_bias(fields, sampling);
  result.n = fields.integer("n", 1, kMaxChoices).value_or(1);
  result.stream = fields.boolean("stream").value_or(false);
  read_stream_options(fields, result);
  read_kv(fields, result);
  fields.ignore({"user", "metadata", "store", "service_tier", "safety_identifier",
                 "prompt_cache_key", "prompt_cache_retention"});
  return result;
}

namespace {

// The settings with what is left open still unset.
EvictionConfig open_settings(const KvWish& wish, const KvRules& rules, int64_t tokens) {
  EvictionConfig config = rules.eviction;
  const KvBudget& budget = wish.budget ? *wish.budget : rules.budget;
  if (budget.unit == KvBudget::Unit::kBytes) {
    try {
      config.budget_entries =
          plan_within(rules.cache, budget.bytes, rules.chunk_tokens).budget_entries;
    } catch (const Error& error) {
      throw api_error(error.code(), error.what(), "kv.budget");
    }
  } else {
    config.budget_entries = budget.entries_for(tokens);
  }
  if (wish.policy && *wish.policy != config.policy) {
    config.policy = *wish.policy;
    config.sinks.reset();  // the policy's own
    config.recent.reset();
    config.floor.reset();
    config.options.clear();
  }
  if (wish.policy && *wish.policy == "full") {
    if (wish.budget && budget.unit != KvBudget::Unit::kFull) {
      refuse_field("kv.budget", "policy full evicts nothing and takes no budget");
    }
    config.budget_entries = EvictionConfig::kUnbounded;
  }
  if (wish.sinks) config.sinks = wish.sinks;
  if (wish.recent) config.recent = wish.recent;
  const int64_t held = std::min(config.budget_entries, tokens);
  if (rules.ceiling && held > *rules.ceiling) {
    refuse_field("kv.budget", "{} entries per KV head are above this server's ceiling of {}", held,
                 *rules.ceiling);
  }
  return config;
}

void check_min_budget(const KvWish& wish, const KvRules& rules, int64_t budget) {
  if (!wish.min_budget) return;
  if (!rules.min_budget) {
    refuse_field("kv.min_budget", "this server lowers no budgets (--kv-min-budget)");
  }
  if (budget == EvictionConfig::kUnbounded) {
    refuse_field("kv.min_budget", "an unbounded budget is never lowered");
  }
  if (*wish.min_budget > budget) {
    refuse_field("kv.min_budget", "expected at most the budget of {}, got {}", budget,
                 *wish.min_budget);
  }
}

}  // namespace

BudgetRange resolve_kv(const KvWish& wish, const KvRules& rules, int64_t tokens,
                       std::vector<PositionSpan> pins) {
  EvictionConfig open = open_settings(wish, rules, tokens);
  const char* field = "kv";
  try {
    BudgetRange range;
    range.most = EvictionPolicy(open, rules.cache).config();
    if (!pins.empty()) {
      field = "kv.keep";
      open.pins = std::move(pins);
      range.most = EvictionPolicy(open, rules.cache).config();
    }
    range.least = range.most;
    check_min_budget(wish, rules, open.budget_entries);
    const bool named = wish.budget && !wish.min_budget;
    if (!rules.min_budget || named || open.budget_entries == EvictionConfig::kUnbounded)
      return range;
    const int64_t held = safe_tokens(*range.most.sinks, 0, range.most.pins, INT32_MAX);
    const int64_t least = std::max({*rules.min_budget, wish.min_budget.value_or(0),
                                    held + open.recent.value_or(0), open.floor.value_or(0)});
    if (least >= open.budget_entries) return range;
    open.budget_entries = least;
    range.least = EvictionPolicy(open, rules.cache).config();
    return range;
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    throw api_error(error.code(), error.what(), field);
  }
}

}  // namespace coppice
