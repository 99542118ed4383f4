// The files of the web page, compiled in from page/: nothing is read from the disk.
#pragma once

#include <string_view>

namespace coppice {

struct PageFile {
  std::string_view path, content_type, bytes;
};

// nullptr: no such file.
const PageFile* find_page_file(std::string_view path);

// Content-Security-Policy of all of them: their own scripts, styles and calls, and nothing else.
inline constexpr std::string_view kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace coppice
