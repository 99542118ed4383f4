#include "coppice/server/image_parts.h"

#include <array>
#include <cstdint>

#include "coppice/server/api_error.h"

namespace coppice {
namespace {

constexpr uint8_t kNoDigit = 255;

constexpr std::array<uint8_t, 256> base64_digits() {
  std::array<uint8_t, 256> digits = {};
  digits.fill(kNoDigit);
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < kDigits.size(); ++i)
    digits[static_cast<unsigned char>(kDigits[i])] = static_cast<uint8_t>(i);
  return digits;
}

// False: malformed, or no bytes at all.
bool decode_base64(std::string_view text, std::string& bytes) {
  static constexpr std::array<uint8_t, 256> kDigits = base64_digits();
  if (text.empty() || text.size() % 4 != 0) return false;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  text.remove_suffix(padding);
  bytes.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const uint8_t digit = kDigits[static_cast<unsigned char>(c)];
    if (digit == kNoDigit) return false;
    bits = bits << 6 | digit;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFF);
  }
  return !bytes.empty();
}

bool same_letters(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] + 32) : text[i];
    if (c != lower[i]) return false;
  }
  return true;
}

}  // namespace

std::string read_data_uri(std::string_view url, const std::string& field) {
  constexpr std::string_view kScheme = "data:", kBase64 = ";base64";
  if (!same_letters(url.substr(0, kScheme.size()), kScheme)) {
    refuse_field(field,
                 "expected a data URI (data:image/png;base64,...): this server fetches nothing and "
                 "opens no files, got {}",
                 in_quotes(url.substr(0, 100)));
  }
  const std::size_t comma = url.substr(0, 300).find(',');
  const bool base64 = comma != std::string_view::npos && comma >= kScheme.size() + kBase64.size() &&
                      same_letters(url.substr(comma - kBase64.size(), kBase64.size()), kBase64);
  if (!base64) refuse_field(field, "expected a data URI in base64 (data:image/png;base64,...)");
  std::string bytes;
  if (!decode_base64(url.substr(comma + 1), bytes))
    refuse_field(field, "the base64 of the data URI is empty or malformed");
  return bytes;
}

std::vector<std::string> take_images(OrderedJson& messages) {
  std::vector<std::string> images;
  for (std::size_t m = 0; m < messages.size(); ++m) {
    OrderedJson& message = messages[m];
    if (!message.is_object() || !message.contains("content")) continue;
    OrderedJson& content = message["content"];
    if (!content.is_array()) continue;
    for (std::size_t p = 0; p < content.size(); ++p) {
      OrderedJson& part = content[p];
      if (part["type"] != "image_url") continue;
      const std::string field = fmt::format("messages[{}].content[{}].image_url", m, p);
      OrderedJson url = part.value("image_url", OrderedJson());
      if (url.is_object()) url = url.value("url", OrderedJson());
      if (!url.is_string()) refuse_field(field, "expected {{\"url\": \"data:...\"}}");
      if (images.size() == kMaxImages)
        refuse_field(field, "a request may hold at most {} pictures", kMaxImages);
      images.push_back(read_data_uri(url.get_ref<const std::string&>(), field));
      part = {{"type", "image"}};
    }
  }
  return images;
}

}  // namespace coppice
