// Pictures in chat messages: parts {"type": "image_url", "image_url": {"url": "data:..."}}.
//
// Data URIs alone: this server fetches nothing and opens no file that a request names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coppice/processor/chat_template.h"

namespace coppice {

inline constexpr std::size_t kMaxImages = 32;  // of one request

// The bytes of "data:[type][;parameter];base64,DATA". Throws ApiError 400 naming `field` for any
// other URL, and for base64 that is empty or malformed (blanks and line breaks included).
std::string read_data_uri(std::string_view url, const std::string& field);

// Takes the pictures out of `messages`, in order, and leaves {"type": "image"} in their places,
// which is what chat templates look for. Throws ApiError 400. REQUIRES: messages and their parts
// are of the shapes that read_chat_body() accepts.
std::vector<std::string> take_images(OrderedJson& messages);

}  // namespace coppice
