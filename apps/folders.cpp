#include "apps/folders.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

namespace coppice {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The shared library that holds this code; empty where that is the program itself, or not known.
fs::path own_library() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&cache_folder), &info) == 0 || !info.dli_fname)
    return {};
  const fs::path file = info.dli_fname;
  std::error_code ignored;
  return file.is_absolute() && file.extension() == ".so" ? fs::canonical(file, ignored)
                                                         : fs::path();
}

}  // namespace

fs::path cache_folder() {
  if (const std::string cache = environment("COPPICE_CACHE"); !cache.empty()) return cache;
  const std::string base = environment("XDG_CACHE_HOME");
  return (base.empty() ? fs::path(environment("HOME")) / ".cache" : fs::path(base)) / "coppice";
}

fs::path assets_folder() {
  if (const std::string assets = environment("COPPICE_ASSETS"); !assets.empty()) return assets;
  return cache_folder() / "assets";
}

fs::path gates_folder() {
  if (const std::string gates = environment("COPPICE_GATES"); !gates.empty()) return gates;
  std::error_code ignored;
  for (const fs::path& code : {own_library(), fs::read_symlink("/proc/self/exe", ignored)}) {
    for (fs::path at = code.parent_path(); at.has_relative_path(); at = at.parent_path()) {
      if (fs::is_directory(at / "gates", ignored)) return at / "gates";
    }
  }
  return "gates";
}

}  // namespace coppice
