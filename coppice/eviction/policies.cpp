// The table of policies.
#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/eviction/policy.h"

namespace coppice {

const std::vector<PolicyInfo>& policies() {
  // Gated policies keep 4 sinks: gates trained on short texts let the attention sinks go, which
  // costs more than all else they get wrong. knorm as published protects nothing.
  static const std::vector<PolicyInfo> table = {
      {"full", "keeps everything; takes no budget", Scope::kGlobal, false, 0, 0},
      {"streaming", "the first tokens and the newest ones", Scope::kHead, false, 4, 0},
      {"knorm", "keys of low norm, per head", Scope::kHead, false, 0, 0},
      {"random", "chance, per head; the floor of a comparison", Scope::kHead, false, 0, 0},
      {"trimkv", "retention gates, a fixed budget per head", Scope::kHead, true, 4, 0},
      {"dbtrimkv", "retention gates, one budget for all layers and heads", Scope::kGlobal, true, 4,
       0},
  };
  return table;
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
