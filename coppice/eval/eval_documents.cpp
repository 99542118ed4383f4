#include "coppice/eval/eval_documents.h"

#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/core/log.h"

namespace coppice {
namespace {

// Of those at least `context` long, `wanted` spread evenly; all of them for 0.
std::vector<std::size_t> choose(std::string_view task, const std::vector<EvalDocument>& documents,
                                int64_t context, int64_t wanted) {
  std::vector<std::size_t> fit;
  int64_t longest = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const auto tokens = static_cast<int64_t>(documents[i].tokens.size());
    longest = std::max(longest, tokens);
    if (tokens >= context) fit.push_back(i);
  }
  if (fit.empty())
    fail_argument("{}: no document has {} tokens, the longest has {}", task, context, longest);
  const auto have = static_cast<int64_t>(fit.size());
  if (wanted == 0 || wanted == have) return fit;
  if (wanted > have) {
    log_warning("{}: {} documents have {} tokens, {} were asked for", task, have, context, wanted);
    return fit;
  }
  std::vector<std::size_t> chosen;
  for (const std::size_t place : spread_evenly(have, wanted)) chosen.push_back(fit[place]);
  return chosen;
}

}  // namespace

std::vector<std::size_t> spread_evenly(int64_t have, int64_t wanted) {
  std::vector<std::size_t> places;
  for (int64_t k = 0; k < wanted; ++k)
    places.push_back(static_cast<std::size_t>((2 * k + 1) * have / (2 * wanted)));
  return places;
}

std::vector<DocumentPart> choose_parts(std::string_view task,
                                       const std::vector<EvalDocument>& documents,
                                       std::vector<int64_t>& contexts, int64_t wanted) {
  if (wanted < 0) fail_argument("{}: expected at least 1 document, got {}", task, wanted);
  std::ranges::sort(contexts);
  const auto repeated = std::ranges::unique(contexts);
  contexts.erase(repeated.begin(), repeated.end());
  std::vector<std::vector<std::size_t>> chosen;
  std::size_t most = 0;
  for (const int64_t context : contexts) {
    if (context < 4) fail_argument("{}: a context of {} tokens is too short", task, context);
    chosen.push_back(choose(task, documents, context, wanted));
    most = std::max(most, chosen.back().size());
  }
  std::vector<DocumentPart> parts;
  for (std::size_t k = 0; k < most; ++k)
    for (std::size_t c = 0; c < chosen.size(); ++c)
      if (k < chosen[c].size()) parts.push_back({chosen[c][k], contexts[c]});
  return parts;
}

Json summarise_by_context(
    const std::vector<int64_t>& contexts, const std::vector<EvictionConfig>& settings,
    const std::function<Json(int64_t context, const EvictionConfig& eviction)>& summary_of) {
  Json all = Json::array();
  for (const int64_t context : contexts) {
    for (const EvictionConfig& eviction : settings) {
      Json summary = summary_of(context, eviction);
      if (!summary.is_null()) all.push_back(std::move(summary));
    }
  }
  return all;
}

}  // namespace coppice
