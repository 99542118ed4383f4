// The processes of one training run, and what they tell each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace coppice {

struct Collective {
  virtual ~Collective() = default;
  virtual int64_t rank() const = 0;  // 0 .. size - 1
  virtual int64_t size() const = 0;
  // `tensor`, of one shape in all processes, becomes the sum over them, added in the order of
  // ranks: every process ends with the same bits. Blocks until all have come.
  virtual void sum(at::Tensor& tensor) = 0;
};

// One process on its own.
std::unique_ptr<Collective> make_single();

// What `torchrun` starts: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of the environment. One
// process when they are not set. Throws kInvalidArgument when they make no sense, and when the
// others do not come within `timeout_seconds`.
std::unique_ptr<Collective> make_from_environment(int64_t timeout_seconds = 1800);

}  // namespace coppice
