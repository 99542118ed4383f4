// Hands out a checkpoint's tensors by name and expected shape, and tells of everything that does
// not fit in one Error.
//
// Call take() for every weight, then finish(). A tensor that is missing or misshapen is noted and
// replaced by zeros, so that a model can be built to its end before finish() throws; a model must
// not be used before finish() has returned. Not thread-safe. The Checkpoint must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coppice/core/stored_tensor.h"

namespace at {
class Tensor;
}

namespace coppice {

class Checkpoint;

class WeightLoader final {
 public:
  explicit WeightLoader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  const Checkpoint& checkpoint() const { return checkpoint_; }

  // The tensor as stored. Throws at once, with all that was noted so far, when there are too many
  // faults to go on or zeros in its place would be too large.
  StoredTensor take(const std::string& name, const std::vector<int64_t>& shape);
  // The same as float32.
  at::Tensor take_float(const std::string& name, const std::vector<int64_t>& shape);
  // nullopt when the checkpoint has no such tensor.
  std::optional<StoredTensor> take_optional(const std::string& name,
                                            const std::vector<int64_t>& shape);

  // The output head [V, C]: `embedding` when `tied` (a head that is stored all the same is passed
  // over, as the reference does), else `head`, whose absence is a fault.
  StoredTensor take_head(const std::string& head, const std::string& embedding, bool tied,
                         const std::vector<int64_t>& shape);

  // Marks a tensor that the model has no use for.
  void ignore(const std::string& name) { taken_.insert(name); }

  // Throws kInvalidArgument listing every missing, misshapen and unexpected tensor, if any. Rotary
  // tables ("...rotary_emb.inv_freq"), which models compute themselves, are expected everywhere.
  void finish() const;

 private:
  StoredTensor note(std::string problem, const std::string& name,
                    const std::vector<int64_t>& shape);
  [[noreturn]] void fail_now(const std::string& more) const;

  const Checkpoint& checkpoint_;
  std::set<std::string> taken_;
  std::vector<std::string> problems_;
};

}  // namespace coppice
