#include "coppice/eval/policy_choice.h"

#include <charconv>
#include <map>
#include <set>

#include "coppice/core/error.h"

namespace coppice {
namespace {

int64_t whole_number(std::string_view word, const std::string& name, const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || last != end || value < 0)
    fail_argument("policy \"{}\": {} must be a whole number of at least 0, got \"{}\"", word, name,
                  text);
  return value;
}

Scope read_scope(std::string_view word, const std::string& text) {
  for (const Scope scope : {Scope::kHead, Scope::kLayer, Scope::kGlobal})
    if (scope_name(scope) == text) return scope;
  fail_argument("policy \"{}\": scope must be head, layer or global, got \"{}\"", word, text);
}

}  // namespace

std::string_view scope_name(Scope scope) {
  return scope == Scope::kHead ? "head" : scope == Scope::kLayer ? "layer" : "global";
}

EvictionConfig parse_policy_choice(std::string_view word, const EvictionConfig& base) {
  EvictionConfig config = base;
  const std::size_t colon = word.find(':');
  config.policy = word.substr(0, colon);
  if (colon == std::string_view::npos) return config;
  std::set<std::string> seen;
  for (std::size_t at = colon + 1; at <= word.size();) {
    const std::size_t end = std::min(word.find(',', at), word.size());
    const auto [name, value] = parse_option(word.substr(at, end - at));
    at = end + 1;
    if (!seen.insert(name).second) fail_argument("policy \"{}\": {} stands twice", word, name);
    if (name == "sinks")
      config.sinks = whole_number(word, name, value);
    else if (name == "recent")
      config.recent = whole_number(word, name, value);
    else if (name == "floor")
      config.floor = whole_number(word, name, value);
    else if (name == "lookahead")
      config.lookahead = whole_number(word, name, value);
    else if (name == "scope")
      config.scope = read_scope(word, value);
    else
      config.options.insert_or_assign(name, value);
  }
  return config;
}

std::string policy_choice_name(const EvictionConfig& config) {
  const EvictionConfig plain;
  std::map<std::string, std::string> set(config.options.begin(), config.options.end());
  if (config.sinks) set["sinks"] = std::to_string(*config.sinks);
  if (config.recent) set["recent"] = std::to_string(*config.recent);
  if (config.floor) set["floor"] = std::to_string(*config.floor);
  if (config.lookahead != plain.lookahead) set["lookahead"] = std::to_string(config.lookahead);
  if (config.scope) set["scope"] = scope_name(*config.scope);
  std::string name = config.policy;
  for (const auto& [option, value] : set)
    name += fmt::format("{}{}={}", name == config.policy ? ":" : ",", option, value);
  return name;
}

}  // namespace coppice
