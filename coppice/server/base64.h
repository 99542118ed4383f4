// Base64 with the digits A to Z, a to z, 0 to 9, + and /, padded with =. RFC 4648, section 4.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace coppice {

std::string encode_base64(std::span<const uint8_t> bytes);

// Appends to `bytes`. False: malformed (blanks and line breaks included), or no bytes at all.
bool decode_base64(std::string_view text, std::string& bytes);

}  // namespace coppice
