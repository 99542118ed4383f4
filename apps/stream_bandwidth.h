// How fast this machine's memory can be read: what the speed of a decode step is measured against.
#pragma once

#include <cstdint>
#include <memory>

namespace coppice {

// A block of memory in large pages, as packed weights lie, and its reading by all threads of
// ops::parallel_for, with work shared out as matrix products share it.
class StreamBandwidth final {
 public:
  // At least 256 MiB are taken: several times the last cache, so that it does not answer for the
  // memory. Throws kCapacity when
  // memory does not suffice.
  explicit StreamBandwidth(int64_t bytes);

  int64_t bytes() const { return words_ * 8; }
  // Reads every byte once.
  void read();
  // The median of `passes` timed readings after an untimed one, in bytes per second.
  double measure(int passes = 5);

 private:
  int64_t words_;
  std::shared_ptr<uint8_t> memory_;
};

}  // namespace coppice
