#include "python/native/python_policy.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/eviction/query_window.h"
#include "coppice/eviction/scorer_makers.h"
#include "python/native/arrays.h"

namespace coppice::python {
namespace {

namespace py = pybind11;

// The function, shared by every copy of the policy, some of which end in threads without the GIL.
std::shared_ptr<py::object> share(const py::object& function) {
  return {new py::object(function), [](py::object* shared) {
            const py::gil_scoped_acquire gil;
            delete shared;
          }};
}

class PythonScorer final : public QueryWindowScorer {
 public:
  PythonScorer(PolicyTraits traits, std::shared_ptr<py::object> score)
      : QueryWindowScorer(traits.window), traits_(std::move(traits)), score_(std::move(score)) {}

  std::string_view name() const override { return traits_.name; }
  ScorerNeeds needs() const override {
    return {.gate = traits_.needs.log_beta ? "retention" : "",
            .queries = sees_queries(),
            .rescored = true};
  }
  int64_t default_recent() const override { return traits_.recent; }

  void judge(const SequenceView& view, int64_t) const override {
    const py::gil_scoped_acquire gil;
    for (int64_t layer = 0; layer < view.layers(); ++layer)
      for (int64_t head = 0; head < view.kv_heads(); ++head) {
        const SequenceView::Row row = view.row(layer, head);
        if (row.places.empty()) continue;
        const py::object scores = (*score_)(layer, head, view.tokens_seen(), arrays(view, row));
        view.set_scores(row, read_scores(scores, row));
      }
  }

 protected:
  at::Tensor score_row(const at::Tensor&, int64_t, const at::Tensor&,
                       std::span<const int32_t>) const override {
    fail(ErrorCode::kInternal, "policy {} scores rows in Python", traits_.name);
  }

 private:
  bool sees_queries() const { return traits_.needs.queries || traits_.needs.attention; }

  py::dict arrays(const SequenceView& view, const SequenceView::Row& row) const {
    const PolicyNeeds& needs = traits_.needs;
    py::dict arrays;
    arrays["positions"] = to_numpy(position_tensor(row));
    if (needs.log_beta) {
      const std::vector<float> numbers = view.log_betas(row);
      arrays["log_beta"] =
          py::array_t<float>(static_cast<py::ssize_t>(numbers.size()), numbers.data());
    }
    if (needs.values) arrays["values"] = to_numpy(view.values(row));
    if (!needs.keys && !sees_queries()) return arrays;
    const at::Tensor keys = view.keys(row);
    if (needs.keys) arrays["keys"] = to_numpy(keys);
    if (sees_queries()) add_attention(view, row, keys, arrays);
    return arrays;
  }

  void add_attention(const SequenceView& view, const SequenceView::Row& row, const at::Tensor& keys,
                     py::dict& arrays) const {
    const std::vector<at::Tensor>& notes = view.notes();
    if (notes.empty())
      fail_argument("policy {}: no queries were seen of this sequence", traits_.name);
    const at::Tensor& all = notes[static_cast<std::size_t>(row.layer)];
    const int64_t count = std::min(all.size(0), window());
    const at::Tensor q =
        group_queries(all.narrow(0, all.size(0) - count, count), row.head, view.kv_heads());
    if (traits_.needs.queries) arrays["queries"] = to_numpy(q.clone());
    if (traits_.needs.attention)
      arrays["attention"] = to_numpy(
          probabilities(masked_logits(q, view.tokens_seen() - count, keys, row.positions)));
  }

  std::vector<float> read_scores(const py::object& returned, const SequenceView::Row& row) const {
    const auto place = [&] {
      return fmt::format("policy {}: the scores of layer {}, head {}", traits_.name, row.layer,
                         row.head);
    };
    if (returned.is_none())
      fail_argument("{} are None, expected {} numbers", place(), row.places.size());
    const py::array_t<float> array =
        py::module_::import("numpy").attr("ascontiguousarray")(returned, "float32");
    // ascontiguousarray makes [1] of a single number.
    const bool single = py::module_::import("numpy").attr("ndim")(returned).cast<int>() == 0;
    if (single || array.ndim() != 1 ||
        array.shape(0) != static_cast<py::ssize_t>(row.places.size()))
      fail_argument("{} have the shape {}, expected ({},): one for each entry", place(),
                    single ? "()" : py::str(py::object(array.attr("shape"))).cast<std::string>(),
                    row.places.size());
    std::vector<float> scores(array.data(), array.data() + array.shape(0));
    const auto nan =
        std::find_if(scores.begin(), scores.end(), [](float x) { return std::isnan(x); });
    if (nan != scores.end())
      fail_argument("{} hold a NaN, for the entry of position {}", place(),
                    row.positions[static_cast<std::size_t>(nan - scores.begin())]);
    return scores;
  }

  PolicyTraits traits_;
  std::shared_ptr<py::object> score_;
};

Scope scope_of(const PolicyTraits& traits) {
  if (traits.scope == "head") return Scope::kHead;
  if (traits.scope == "layer") return Scope::kLayer;
  if (traits.scope == "global") return Scope::kGlobal;
  fail_argument("policy {}: scope is \"{}\", expected head, layer or global", traits.name,
                traits.scope);
}

void check(const PolicyTraits& traits) {
  if (traits.name.empty()) fail_argument("a policy needs a name, got an empty one");
  for (const PolicyInfo& info : policies())
    if (info.name == traits.name)
      fail_argument("policy {} is built in; choose another name", traits.name);
  if (traits.window < 1 || traits.window > 4096)
    fail_argument("policy {}: window must be 1 to 4096, got {}", traits.name, traits.window);
  for (const auto& [what, value] :
       {std::pair{"sinks", traits.sinks}, {"recent", traits.recent}, {"floor", traits.floor}})
    if (value < 0)
      fail_argument("policy {}: {} must be at least 0, got {}", traits.name, what, value);
}

}  // namespace

std::shared_ptr<const PolicyInfo> make_python_policy(const PolicyTraits& traits,
                                                     const py::object& score) {
  check(traits);
  auto info = std::make_shared<PolicyInfo>();
  info->name = traits.name;
  info->summary = "a score of one's own, in Python";
  info->scope = scope_of(traits);
  info->gate = traits.needs.log_beta ? "retention" : "";
  info->default_sinks = traits.sinks;
  info->default_floor = traits.floor;
  info->make = [traits, function = share(score)](ScorerSettings&) -> std::unique_ptr<Scorer> {
    return std::make_unique<PythonScorer>(traits, function);
  };
  return info;
}

}  // namespace coppice::python
