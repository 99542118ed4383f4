// Where the program finds what is fetched and shipped.
#pragma once

#include <filesystem>

namespace coppice {

// $COPPICE_CACHE, or coppice/ in the user's cache folder.
std::filesystem::path cache_folder();
// $COPPICE_ASSETS, or assets/ in the cache: where `make` keeps what it fetches.
std::filesystem::path assets_folder();
// $COPPICE_GATES, or the nearest gates/ above the code: beside the program's checkout, or beside
// the Python module.
std::filesystem::path gates_folder();

}  // namespace coppice
