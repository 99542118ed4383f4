#include "coppice/server/base64.h"

#include <algorithm>
#include <array>

namespace coppice {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNoDigit = 255;

constexpr std::array<uint8_t, 256> values_of_digits() {
  std::array<uint8_t, 256> digits = {};
  digits.fill(kNoDigit);
  for (std::size_t i = 0; i < kDigits.size(); ++i)
    digits[static_cast<unsigned char>(kDigits[i])] = static_cast<uint8_t>(i);
  return digits;
}

}  // namespace

std::string encode_base64(std::span<const uint8_t> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    uint32_t group = uint32_t{bytes[i]} << 16U;
    if (count > 1) group |= uint32_t{bytes[i + 1]} << 8U;
    if (count > 2) group |= uint32_t{bytes[i + 2]};
    for (std::size_t digit = 0; digit < 4; ++digit) {
      text += digit <= count ? kDigits[(group >> (18U - 6U * digit)) & 63U] : '=';
    }
  }
  return text;
}

bool decode_base64(std::string_view text, std::string& bytes) {
  static constexpr std::array<uint8_t, 256> kValues = values_of_digits();
  if (text.empty() || text.size() % 4 != 0) return false;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  text.remove_suffix(padding);
  bytes.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const uint8_t digit = kValues[static_cast<unsigned char>(c)];
    if (digit == kNoDigit) return false;
    bits = bits << 6 | digit;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFF);
  }
  return !bytes.empty();
}

}  // namespace coppice
