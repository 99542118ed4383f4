// One question that an evaluation asks of every policy: the seam between what is measured (a task,
// one file each) and how a grid of policies and budgets is run, kept and summed up (evaluator.h).
//
// A task has items, such as a document cut to a length. Run under one setting, an item gives one
// row for each of its keys; what a row holds depends on the task's config(), its key and the
// setting alone.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/eviction/policy.h"

namespace coppice {

class RowTable;
struct Model;

// The model that all settings share, and how its cache is kept.
struct EvalModel {
  std::shared_ptr<Model> model;
  at::ScalarType kv_dtype = at::kFloat;
  int64_t chunk_tokens = 128;  // of one pass; eviction follows each
};

class EvalTask {
 public:
  virtual ~EvalTask() = default;

  virtual std::string_view name() const = 0;
  // What rows depend on besides: a flat object. How many items there are is no part of it.
  virtual Json config() const = 0;
  virtual int64_t items() const = 0;
  // What names the rows of an item under any one setting: flat objects of the same fields for all.
  virtual std::vector<Json> keys(int64_t item) const = 0;
  // Most tokens the cache sees: under a budget of at least as many nothing may be evicted.
  virtual int64_t tokens(int64_t item) const = 0;
  // What was found, one flat object per key, in their order.
  virtual std::vector<Json> run(int64_t item, const EvictionConfig& eviction) = 0;
  // Fields of what was found that must be the same wherever nothing was evicted.
  virtual std::vector<std::string> outcome() const = 0;

  // One object per group of items and setting, of the rows there are; `settings` starts with the
  // full cache.
  virtual Json summarise(const RowTable& rows,
                         const std::vector<EvictionConfig>& settings) const = 0;
  // The same for people.
  virtual std::string table(const Json& summary) const = 0;
};

}  // namespace coppice
