#include "coppice/eval/evaluator.h"

#include <algorithm>
#include <chrono>

#include "coppice/core/error.h"
#include "coppice/eval/policy_choice.h"

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

bool bounded(const EvictionConfig& eviction) {
  return eviction.budget_entries != EvictionConfig::kUnbounded;
}

struct Work {
  int64_t item;
  EvictionConfig eviction;
};

int64_t shortest_item(const EvalTask& task) {
  int64_t best = 0;
  for (int64_t i = 1; i < task.items(); ++i)
    if (task.tokens(i) < task.tokens(best)) best = i;
  return best;
}

// Everything to run, item by item, with the budgets that nothing exceeds.
std::vector<Work> plan(const EvalTask& task, const std::vector<EvictionConfig>& settings) {
  const int64_t shortest = shortest_item(task);
  std::vector<Work> all;
  for (int64_t item = 0; item < task.items(); ++item) {
    for (const EvictionConfig& eviction : settings) all.push_back({item, eviction});
    if (item != shortest) continue;
    std::vector<std::string> checked;
    for (const EvictionConfig& eviction : settings) {
      if (!bounded(eviction) || std::ranges::count(checked, policy_choice_name(eviction)) > 0)
        continue;
      checked.push_back(policy_choice_name(eviction));
      const bool there = std::ranges::any_of(settings, [&](const EvictionConfig& other) {
        return policy_choice_name(other) == checked.back() &&
               other.budget_entries >= task.tokens(item);
      });
      if (there) continue;
      EvictionConfig roomy = eviction;
      roomy.budget_entries = task.tokens(item);
      all.push_back({item, roomy});
    }
  }
  return all;
}

// Throws where nothing can have been evicted and the outcome is not that of the full cache.
void check_equal(const EvalTask& task, const RowTable& table, const Work& work,
                 const CacheConfig& cache) {
  if (!bounded(work.eviction) || work.eviction.budget_entries < task.tokens(work.item)) return;
  if (!EvictionPolicy(work.eviction, cache).fills_budget()) return;
  for (const Json& key : task.keys(work.item)) {
    const Json* ours = table.find(key, work.eviction);
    const Json* full = table.find(key, {.policy = "full"});
    COPPICE_CHECK(ours != nullptr && full != nullptr, "a row of {} is lacking", dump_json(key));
    for (const std::string& field : task.outcome()) {
      const Json there = full->value(field, Json()), here = ours->value(field, Json());
      if (there == here) continue;
      fail(ErrorCode::kInternal,
           "{} {}: {} with a budget of {} for at most {} tokens gives {} {}, the full cache {}",
           task.name(), dump_json(key), policy_choice_name(work.eviction),
           work.eviction.budget_entries, task.tokens(work.item), field, dump_json(here),
           dump_json(there));
    }
  }
}

bool complete(const EvalTask& task, const RowTable& table, const Work& work) {
  return std::ranges::all_of(task.keys(work.item), [&](const Json& key) {
    return table.find(key, work.eviction) != nullptr;
  });
}

}  // namespace

Json setting_key(const EvictionConfig& eviction) {
  return {{"policy", policy_choice_name(eviction)},
          {"budget", bounded(eviction) ? Json(eviction.budget_entries) : Json()}};
}

Json setting_details(const EvictionConfig& eviction, const CacheConfig& cache) {
  if (!bounded(eviction)) return {{"options", Json::object()}, {"budget_bytes", Json()}};
  const EvictionPolicy policy(eviction, cache);
  const EvictionConfig& config = policy.config();
  Json options = {{"scope", scope_name(*config.scope)},
                  {"sinks", *config.sinks},
                  {"recent", *config.recent},
                  {"floor", *config.floor}};
  if (policy.needs().gate == "retention") options["lookahead"] = config.lookahead;
  for (const auto& [name, value] : config.options) options[name] = value;
  return {{"options", options}, {"budget_bytes", policy.budget_total() * cache.entry_bytes()}};
}

std::vector<EvictionConfig> eval_settings(const std::vector<std::string>& policies,
                                          const std::vector<int64_t>& budgets,
                                          const EvictionConfig& base, const CacheConfig& cache,
                                          std::string_view gate_kind) {
  EvictionConfig full;
  full.policy = "full";
  std::vector<EvictionConfig> settings = {full};
  for (const std::string& name : policies) {
    const EvictionConfig choice = parse_policy_choice(name, base);
    if (find_policy(choice.policy).name == "full") {
      if (name != "full") fail_argument("policy full has no settings, got \"{}\"", name);
      continue;
    }
    for (const int64_t budget : budgets) {
      EvictionConfig setting = choice;
      setting.budget_entries = budget;
      const EvictionPolicy policy(setting, cache);
      policy.check_gate_kind(gate_kind);
      const Json key = setting_key(setting);
      const bool there = std::ranges::any_of(
          settings, [&](const EvictionConfig& other) { return setting_key(other) == key; });
      if (!there) settings.push_back(setting);
    }
  }
  return settings;
}

RowTable::RowTable(const EvalTask& task, const std::vector<Json>& rows) {
  if (task.items() > 0) {
    const Json first = task.keys(0).front();
    for (const auto& [name, ignored] : first.items()) fields_.push_back(name);
  }
  for (const char* name : {"policy", "budget"}) fields_.emplace_back(name);
  for (const Json& row : rows) add(row);
}

void RowTable::add(const Json& row) {
  Json key;
  for (const std::string& name : fields_) key[name] = row.value(name, Json());
  rows_.insert_or_assign(dump_json(key), row);
}

const Json* RowTable::find(const Json& key, const EvictionConfig& eviction) const {
  Json whole = key;
  whole.update(setting_key(eviction));
  const auto found = rows_.find(dump_json(whole));
  return found == rows_.end() ? nullptr : &found->second;
}

RowTable run_evaluation(EvalTask& task, const std::vector<EvictionConfig>& settings,
                        const CacheConfig& cache, const Json& config, RecordFile& file,
                        const std::function<void(const EvalProgress&)>& progress) {
  RowTable table(task, file.rows());
  EvalProgress at;
  std::vector<Work> all = plan(task, settings);
  for (const Work& work : all) {
    const auto rows = static_cast<int64_t>(task.keys(work.item).size());
    at.rows_in_all += rows;
    if (complete(task, table, work))
      at.rows += rows;
    else
      at.tokens_in_all += task.tokens(work.item);
  }
  const Clock::time_point begin = Clock::now();
  for (const Work& work : all) {
    if (!complete(task, table, work)) {
      const Clock::time_point start = Clock::now();
      const std::vector<Json> found = task.run(work.item, work.eviction);
      const double seconds = seconds_since(start) / static_cast<double>(found.size());
      const std::vector<Json> keys = task.keys(work.item);
      COPPICE_CHECK(found.size() == keys.size(), "{} rows for {} keys", found.size(), keys.size());
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (table.find(keys[i], work.eviction) != nullptr) continue;
        Json row = config;
        row.update(keys[i]);
        row.update(setting_key(work.eviction));
        row.update(setting_details(work.eviction, cache));
        row.update(found[i]);
        row["seconds"] = seconds;
        file.append(row);
        table.add(row);
        ++at.rows;
      }
      at.tokens += task.tokens(work.item);
      at.seconds = seconds_since(begin);
      if (progress) progress(at);
    }
    check_equal(task, table, work, cache);
  }
  return table;
}

}  // namespace coppice
