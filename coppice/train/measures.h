// Named numbers of one training step, as weighted means over its micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "coppice/core/json.h"

namespace coppice {

class Measures final {
 public:
  // A list under one name has the same length each time.
  void add(const std::string& name, const std::vector<double>& values, double weight);
  void add(const std::string& name, double value, double weight) {
    add(name, std::vector<double>{value}, weight);
  }

  // 0 when nothing was added, or with weight 0 alone.
  double mean(const std::string& name) const;
  // {"kl": 0.1, "kept_per_layer": [..]}: a list of one value as a number.
  Json json() const;

  // Sums and weights as one vector [K] float64, in the order of names: to be added up between
  // processes, which have measured the same names.
  at::Tensor pack() const;
  void unpack(const at::Tensor& packed);

 private:
  struct Sum {
    std::vector<double> values;
    double weight = 0.0;
  };
  std::map<std::string, Sum> sums_;
};

}  // namespace coppice
