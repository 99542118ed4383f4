#include "coppice/eval/agreement.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/eval/bounded_reader.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/figures.h"
#include "coppice/models/model.h"

namespace coppice {
namespace {

constexpr int64_t kSliceRows = 64;  // of logits at once: 64 x V floats, twice

// Sum over rows of KL(full || ours) of what the hidden states [N, C] predict.
double sum_kl(Model& model, const at::Tensor& full, const at::Tensor& ours) {
  double sum = 0.0;
  for (int64_t begin = 0; begin < full.size(0); begin += kSliceRows) {
    const int64_t count = std::min(kSliceRows, full.size(0) - begin);
    const auto log_p = [&](const at::Tensor& hidden) {
      return torch::log_softmax(model.logits(hidden.narrow(0, begin, count)).to(torch::kFloat), 1);
    };
    const at::Tensor p = log_p(full), q = log_p(ours);
    sum += (p.exp() * (p - q)).sum(torch::kDouble).item<double>();
  }
  return sum;
}

// Of one row of hidden states [1, C].
int32_t likeliest(Model& model, const at::Tensor& hidden) {
  return static_cast<int32_t>(model.logits(hidden).argmax(1).item<int64_t>());
}

// Reads a document chunk by chunk. scored(first, hidden): the hidden states at the positions from
// `first` on, of those that are scored. -> the last hidden state [1, C].
template <typename Scored>
at::Tensor read_document(BoundedReader& reader, std::span<const int32_t> ids, int64_t chunk_tokens,
                         Scored scored) {
  const auto length = static_cast<int64_t>(ids.size());
  at::Tensor last;
  for (int64_t at = 0; at < length; at += chunk_tokens) {
    const int64_t count = std::min(chunk_tokens, length - at);
    const at::Tensor hidden =
        reader.read(ids.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
    const int64_t first = std::max(at, length / 2), end = std::min(at + count, length - 1);
    if (first < end) scored(first, hidden.narrow(0, first - at, end - first));
    last = hidden.narrow(0, count - 1, 1);
  }
  return last;
}

}  // namespace

AgreementTask::AgreementTask(const EvalModel& model, std::vector<EvalDocument> documents,
                             const AgreementOptions& options)
    : model_(model), documents_(std::move(documents)), options_(options) {
  if (options.new_tokens < 1)
    fail_argument("agreement: expected a continuation of at least 1 token, got {}",
                  options.new_tokens);
  const int64_t range = model.model->args().max_position_embeddings;
  for (const int64_t context : options_.contexts)
    if (context + options.new_tokens > range)
      fail(ErrorCode::kCapacity,
           "agreement: a context of {} tokens with a continuation of {} passes the model's {} "
           "positions",
           context, options.new_tokens, range);
  items_ = choose_parts("agreement", documents_, options_.contexts, options_.documents);
}

std::vector<Json> AgreementTask::keys(int64_t item) const {
  const DocumentPart& part = items_.at(static_cast<std::size_t>(item));
  return {Json{{"document", documents_[part.document].number}, {"context", part.context}}};
}

int64_t AgreementTask::tokens(int64_t item) const {
  return items_.at(static_cast<std::size_t>(item)).context + options_.new_tokens;
}

std::span<const int32_t> AgreementTask::document(int64_t item) const {
  const DocumentPart& part = items_.at(static_cast<std::size_t>(item));
  return std::span(documents_[part.document].tokens).first(static_cast<std::size_t>(part.context));
}

const AgreementTask::Reference& AgreementTask::reference(int64_t item) {
  if (reference_.item == item) return reference_;
  Reference found;
  BoundedReader reader(model_, {.policy = "full"}, tokens(item));
  std::vector<at::Tensor> parts;
  at::Tensor last =
      read_document(reader, document(item), model_.chunk_tokens,
                    [&](int64_t, const at::Tensor& hidden) { parts.push_back(hidden); });
  found.hidden = torch::cat(parts);
  while (static_cast<int64_t>(found.written.size()) < options_.new_tokens) {
    if (!found.written.empty()) last = reader.read(std::span(found.written).last(1));
    found.written.push_back(likeliest(*model_.model, last));
  }
  found.item = item;
  reference_ = std::move(found);
  return reference_;
}

std::vector<Json> AgreementTask::run(int64_t item, const EvictionConfig& eviction) {
  const c10::InferenceMode inference;
  const Reference& full = reference(item);
  const std::span<const int32_t> ids = document(item);
  const int64_t half = static_cast<int64_t>(ids.size()) / 2;
  BoundedReader reader(model_, eviction, tokens(item));
  double kl = 0.0;
  at::Tensor last =
      read_document(reader, ids, model_.chunk_tokens, [&](int64_t first, const at::Tensor& hidden) {
        kl += sum_kl(*model_.model, full.hidden.narrow(0, first - half, hidden.size(0)), hidden);
      });
  int64_t agreed = 0, prefix = 0;
  for (int64_t i = 0; i < options_.new_tokens; ++i) {
    if (i > 0)
      last = reader.read(std::span(full.written).subspan(static_cast<std::size_t>(i - 1), 1));
    if (likeliest(*model_.model, last) != full.written[static_cast<std::size_t>(i)]) continue;
    if (prefix == i) ++prefix;
    ++agreed;
  }
  const EvalDocument& from = documents_[items_[static_cast<std::size_t>(item)].document];
  Json row = {{"id", from.id},    {"source", from.source},
              {"kl_sum", kl},     {"scored_tokens", full.hidden.size(0)},
              {"agreed", agreed}, {"prefix", prefix}};
  row.update(reader.usage());
  return {row};
}

Json AgreementTask::summary_of(const RowTable& rows, int64_t context,
                               const EvictionConfig& eviction) const {
  Quotient kl, agreement, prefix;
  int64_t bytes = 0;
  for (int64_t item = 0; item < items(); ++item) {
    if (items_[static_cast<std::size_t>(item)].context != context) continue;
    const Json* row = rows.find(keys(item).front(), eviction);
    if (row == nullptr) continue;
    kl.add(row->at("kl_sum").get<double>(), row->at("scored_tokens").get<double>());
    agreement.add(row->at("agreed").get<double>(), static_cast<double>(options_.new_tokens));
    prefix.add(row->at("prefix").get<double>(), 1.0);
    bytes = std::max(bytes, row->at("bytes_peak").get<int64_t>());
  }
  if (kl.items() == 0) return Json();
  Json summary = setting_key(eviction);
  summary["context"] = context;
  summary["documents"] = kl.items();
  for (const auto& [name, figure] :
       {std::pair{"kl", &kl}, std::pair{"agreement", &agreement}, std::pair{"prefix", &prefix}}) {
    summary[name] = figure->value();
    summary[std::string(name) + "_interval"] = interval_json(figure->interval(options_.seed));
  }
  summary["bytes_peak"] = bytes;
  return summary;
}

Json AgreementTask::summarise(const RowTable& rows,
                              const std::vector<EvictionConfig>& settings) const {
  return summarise_by_context(
      options_.contexts, settings,
      [&](int64_t context, const auto& eviction) { return summary_of(rows, context, eviction); });
}

std::string AgreementTask::table(const Json& summary) const {
  std::string text = fmt::format(
      "{:>7}  {:<20} {:>7}  {:>9}  {:>8}  {:<18}  {:>6}  {:<14}  {:>6}\n", "context", "policy",
      "budget", "documents", "KL", "95 % interval", "agrees", "95 % interval", "prefix");
  for (const Json& row : summary)
    text +=
        fmt::format("{:>7}  {:<20} {:>7}  {:>9}  {:>8.4f}  {:<18}  {:>6.3f}  {:<14}  {:>6.1f}\n",
                    row["context"].get<int64_t>(), row["policy"].get<std::string>(),
                    budget_text(row), row["documents"].get<int64_t>(), row["kl"].get<double>(),
                    interval_text(row["kl_interval"], 4), row["agreement"].get<double>(),
                    interval_text(row["agreement_interval"], 3), row["prefix"].get<double>());
  return text;
}

}  // namespace coppice
