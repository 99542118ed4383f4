// The table of policies.
#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/eviction/policy.h"
#include "coppice/eviction/scorer_makers.h"

namespace coppice {
namespace {

std::unique_ptr<Scorer> make_retention(ScorerSettings& settings) {
  return make_retention_scorer(settings.config.lookahead, settings.config.parity_reference);
}

// Option tau: entries that score less go; "none" leaves it to the budget.
std::unique_ptr<Scorer> make_kvzap(ScorerSettings& settings) {
  return make_static_gate_scorer("kvzap", settings.options.number_or_none("tau", -1e30, 1e30));
}

}  // namespace

int64_t window_within(const ScorerSettings& settings, int64_t window) {
  return std::clamp<int64_t>(settings.config.budget_entries / 2, 1, window);
}

int64_t odd_kernel(ScorerSettings& settings, int64_t fallback) {
  const int64_t kernel = settings.options.integer("kernel", fallback, 1, 1023);
  if (kernel % 2 == 0)
    fail_argument("policy {}: kernel must be odd, got {}", settings.config.policy, kernel);
  return kernel;
}

const std::vector<PolicyInfo>& policies() {
  // Gated policies keep 4 sinks: gates trained on short texts let the attention sinks go, which
  // costs more than all else they get wrong. A floor of 8 is 3 % of perplexity where the budget is
  // 16 a head, and changes nothing from 64 on (docs/gates.md). Rivals keep what their papers keep.
  static const std::vector<PolicyInfo> table = {
      {"full", "keeps everything; takes no budget", Scope::kGlobal, "", 0, nullptr},
      {"streaming", "the first tokens and the newest ones", Scope::kHead, "", 4,
       [](ScorerSettings&) { return make_streaming_scorer(); }},
      {"knorm", "keys of low norm, per head", Scope::kHead, "", 0,
       [](ScorerSettings&) { return make_knorm_scorer(); }},
      {"random", "chance, per head; the floor of a comparison", Scope::kHead, "", 0,
       [](ScorerSettings& s) { return make_random_scorer(s.config.seed); }},
      {"h2o", "most attention so far, and the newest half, per head", Scope::kHead, "", 0,
       make_h2o_scorer},
      {"tova", "most attention by the newest token, one set per layer", Scope::kHead, "", 0,
       make_tova_scorer, true},
      {"snapkv", "most attention by the newest window, pooled, per head", Scope::kHead, "", 0,
       make_snapkv_scorer},
      {"pyramidkv", "snapkv with budgets that fall from layer to layer", Scope::kGlobal, "", 0,
       make_pyramidkv_scorer, true},
      {"adakv", "snapkv with budgets that heads of a layer compete for", Scope::kLayer, "", 0,
       make_adakv_scorer, true},
      {"ada-pyramid", "pyramidkv among layers, adakv inside them", Scope::kGlobal, "", 0,
       make_ada_pyramid_scorer, true},
      {"rkv", "attention by the newest window less likeness to other keys, per head", Scope::kHead,
       "", 0, make_rkv_scorer},
      {"keydiff", "keys least like the row's mean direction, per head", Scope::kHead, "", 0,
       make_keydiff_scorer},
      {"expected-attention", "attention expected of future queries, times value norm, per head",
       Scope::kHead, "", 4, make_expected_attention_scorer},
      {"cake", "attention and its changes; layers share by how spread and restless theirs is",
       Scope::kGlobal, "", 0, make_cake_scorer, true},
      {"trimkv", "retention gates, a fixed budget per head", Scope::kHead, "retention", 4,
       make_retention},
      {"dbtrimkv", "retention gates, one budget for all layers and heads", Scope::kGlobal,
       "retention", 4, make_retention, false, 8},
      {"kvzap", "kvzap gates, one budget for all layers and heads, below it a threshold if asked",
       Scope::kGlobal, "kvzap", 4, make_kvzap},
      {"fastkvzip", "fastkvzip gates, one budget for all layers and heads", Scope::kGlobal,
       "fastkvzip", 4,
       [](ScorerSettings&) { return make_static_gate_scorer("fastkvzip", std::nullopt); }},
  };
  return table;
}

std::string default_policy(std::string_view gate_kind) {
  if (gate_kind.empty()) return "streaming";
  return gate_kind == "retention" ? "dbtrimkv" : std::string(gate_kind);
}

std::vector<std::string> policies_for(std::string_view gate_kind) {
  std::vector<std::string> names;
  for (const PolicyInfo& info : policies())
    if (info.gate.empty() || info.gate == gate_kind) names.push_back(info.name);
  return names;
}

const PolicyInfo& find_policy(std::string_view name) {
  std::string names;
  for (const PolicyInfo& info : policies()) {
    if (info.name == name) return info;
    names += (names.empty() ? "" : ", ") + info.name;
  }
  fail(ErrorCode::kNotFound, "no eviction policy \"{}\"; expected one of {}", name, names);
}

}  // namespace coppice
