// SnapKV and what builds on its scores.
//
//   s[j] = pool over j of  mean over the last w queries and the group's heads of  A[i, j]
//
// for keys before the window, whose own entries are safe by default. Source: arXiv:2404.14469.
// Differs from it in judging at every eviction, not at the end of the prompt alone: from the last w
// queries seen by then.
#pragma once

#include <memory>

#include "coppice/eviction/query_window.h"

namespace coppice {

struct ScorerSettings;

struct SnapkvOptions {
  int64_t window = 32;
  int64_t kernel = 7;
  bool max_pool = true;
};

// Reads window, kernel and pool.
SnapkvOptions read_snapkv_options(ScorerSettings& settings);

class SnapkvScorer : public QueryWindowScorer {
 public:
  explicit SnapkvScorer(const SnapkvOptions& options)
      : QueryWindowScorer(options.window), options_(options) {}

  std::string_view name() const override { return "snapkv"; }
  int64_t default_recent() const override { return window(); }

 protected:
  at::Tensor score_row(const at::Tensor& q, int64_t first, const at::Tensor& keys,
                       std::span<const int32_t> positions) const override;

 private:
  SnapkvOptions options_;
};

}  // namespace coppice
