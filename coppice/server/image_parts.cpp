#include "coppice/server/image_parts.h"

#include "coppice/server/api_error.h"
#include "coppice/server/base64.h"
#include "coppice/server/text.h"

namespace coppice {

std::string read_data_uri(std::string_view url, const std::string& field) {
  constexpr std::string_view kScheme = "data:", kBase64 = ";base64";
  if (lower(url.substr(0, kScheme.size())) != kScheme) {
    refuse_field(field,
                 "expected a data URI (data:image/png;base64,...): this server fetches nothing and "
                 "opens no files, got {}",
                 in_quotes(url.substr(0, 100)));
  }
  const std::size_t comma = url.substr(0, 300).find(',');
  const bool base64 = comma != std::string_view::npos && comma >= kScheme.size() + kBase64.size() &&
                      lower(url.substr(comma - kBase64.size(), kBase64.size())) == kBase64;
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
