#include "coppice/core/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "coppice/core/error.h"

namespace coppice {

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  COPPICE_CHECK(
      state_->context && EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) == 1,
      "SHA-256 is not available");
}

Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  COPPICE_CHECK(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()) == 1,
                "SHA-256 failed");
}

std::string Sha256::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  COPPICE_CHECK(EVP_DigestFinal_ex(state_->context.get(), digest.data(), &size) == 1,
                "SHA-256 failed");
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256_of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

}  // namespace coppice
