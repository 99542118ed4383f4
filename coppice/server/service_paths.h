// The paths of the server. Internal to server/.
#pragma once

#include <string_view>
#include <vector>

namespace coppice {

// What may be asked of `path`; none: there is no such path.
std::vector<std::string_view> allowed_methods(std::string_view path);

}  // namespace coppice
