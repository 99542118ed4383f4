#include "coppice/eviction/sequence_view.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

#include "coppice/core/error.h"

namespace coppice {

SequenceView::Row SequenceView::row(int64_t layer, int64_t head) const {
  const BlockTable& table = cache_.row(sequence_, layer, head);
  const at::Tensor pool = cache_.positions().cpu();
  const auto* positions = pool.const_data_ptr<int32_t>();
  Row row{layer, head, {}, {}};
  std::vector<int32_t> unsorted;
  for (int64_t i = 0; i < table.length; ++i) unsorted.push_back(positions[table.slot(i)]);
  row.places.resize(unsorted.size());
  std::iota(row.places.begin(), row.places.end(), int64_t{0});
  if (!std::is_sorted(unsorted.begin(), unsorted.end())) {
    std::sort(row.places.begin(), row.places.end(), [&](int64_t a, int64_t b) {
      return unsorted[static_cast<std::size_t>(a)] < unsorted[static_cast<std::size_t>(b)];
    });
  }
  for (const int64_t place : row.places)
    row.positions.push_back(unsorted[static_cast<std::size_t>(place)]);
  return row;
}

at::Tensor SequenceView::keys(const Row& row) const {
  std::vector<float> keys;
  const auto length = static_cast<int64_t>(row.places.size());
  cache_.read_keys(sequence_, row.layer, row.head, 0, length, keys);
  return at::tensor(keys)
      .view({length, cache_.config().head_dim})
      .index_select(0, at::tensor(row.places, at::kLong));
}

at::Tensor SequenceView::values(const Row& row) const {
  const BlockTable& table = cache_.row(sequence_, row.layer, row.head);
  std::vector<int64_t> slots;
  for (const int64_t place : row.places) slots.push_back(table.slot(place));
  return cache_.values()
      .view({-1, cache_.config().head_dim})
      .index_select(0, at::tensor(slots, at::kLong).to(cache_.config().device))
      .to(at::kCPU, at::kFloat);
}

namespace {

// What a pool of one number per entry says of a row.
std::vector<float> gather(const at::Tensor& pool, const BlockTable& table,
                          std::span<const int64_t> places) {
  const at::Tensor local = pool.cpu();
  const auto* numbers = local.const_data_ptr<float>();
  std::vector<float> gathered;
  for (const int64_t place : places) gathered.push_back(numbers[table.slot(place)]);
  return gathered;
}

}  // namespace

std::vector<float> SequenceView::log_betas(const Row& row) const {
  return gather(cache_.log_betas(), cache_.row(sequence_, row.layer, row.head), row.places);
}

std::vector<float> SequenceView::scores(const Row& row) const {
  return gather(cache_.aux(), cache_.row(sequence_, row.layer, row.head), row.places);
}

void SequenceView::set_scores(const Row& row, std::span<const float> scores) const {
  COPPICE_CHECK(scores.size() == row.places.size(), "{} scores for a row of {} entries",
                scores.size(), row.places.size());
  std::vector<float> by_place(row.places.size());
  for (std::size_t i = 0; i < row.places.size(); ++i)
    by_place[static_cast<std::size_t>(row.places[i])] = scores[i];
  cache_.set_aux(sequence_, row.layer, row.head, 0, by_place);
}

void SequenceView::set_scores(const Row& row, const at::Tensor& scores) const {
  const at::Tensor local = scores.to(at::kCPU, at::kFloat).contiguous();
  set_scores(row,
             std::span(local.const_data_ptr<float>(), static_cast<std::size_t>(local.numel())));
}

at::Tensor position_tensor(const SequenceView::Row& row) {
  return at::tensor(at::ArrayRef<int32_t>(row.positions), at::kInt).to(at::kLong);
}

}  // namespace coppice
