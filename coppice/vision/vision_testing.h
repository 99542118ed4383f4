// Golden pictures of tests/golden/pictures, for tests.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/core/mapped_file.h"

namespace coppice::testing {

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string golden_file(const std::string& name) {
  return read_text_file(std::string(COPPICE_SOURCE_DIR) + "/tests/golden/pictures/" + name);
}

inline const Json& golden_pictures() {
  static const Json cases = parse_json(golden_file("expected.json"), "expected.json");
  return cases;
}

inline std::vector<uint8_t> from_base64(const std::string& text) {
  std::vector<uint8_t> bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) break;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<uint8_t>(bits >> count));
  }
  return bytes;
}

inline std::vector<uint8_t> pixels_of(const Json& wanted) {
  return from_base64(wanted["rgb"].get<std::string>());
}

inline int largest_difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size()) return std::numeric_limits<int>::max();
  int largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(int{a[i]} - int{b[i]}));
  return largest;
}

}  // namespace coppice::testing
