#include "coppice/train/measures.h"

#include <torch/torch.h>

#include "coppice/core/error.h"

namespace coppice {

void Measures::add(const std::string& name, const std::vector<double>& values, double weight) {
  Sum& sum = sums_[name];
  if (sum.values.empty()) sum.values.resize(values.size());
  COPPICE_CHECK(sum.values.size() == values.size(), "measure {} changed its length", name);
  if (weight == 0.0) return;
  for (std::size_t i = 0; i < values.size(); ++i) sum.values[i] += weight * values[i];
  sum.weight += weight;
}

double Measures::mean(const std::string& name) const {
  const auto found = sums_.find(name);
  if (found == sums_.end() || found->second.weight == 0.0) return 0.0;
  return found->second.values.front() / found->second.weight;
}

Json Measures::json() const {
  Json json = Json::object();
  for (const auto& [name, sum] : sums_) {
    Json list = Json::array();
    for (const double value : sum.values)
      list.push_back(sum.weight == 0.0 ? 0.0 : value / sum.weight);
    json[name] = list.size() == 1 ? list[0] : list;
  }
  return json;
}

at::Tensor Measures::pack() const {
  std::vector<double> flat;
  for (const auto& [name, sum] : sums_) {
    flat.insert(flat.end(), sum.values.begin(), sum.values.end());
    flat.push_back(sum.weight);
  }
  return torch::tensor(flat, torch::kDouble);
}

void Measures::unpack(const at::Tensor& packed) {
  const double* from = packed.const_data_ptr<double>();
  for (auto& [name, sum] : sums_) {
    for (double& value : sum.values) value = *from++;
    sum.weight = *from++;
  }
}

}  // namespace coppice
