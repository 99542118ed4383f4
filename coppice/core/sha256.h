// SHA-256 of bytes that come in pieces.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace coppice {

class Sha256 final {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  // In lower-case hexadecimal. Call once.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Of bytes that are all there.
std::string sha256_of(std::span<const std::byte> bytes);

}  // namespace coppice
