#include "coppice/study/rank_output.h"

#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <filesystem>
#include <span>

#include "coppice/core/error.h"
#include "coppice/loader/safetensors_file.h"
#include "coppice/study/rank_report.h"

extern char** environ;

namespace coppice {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(text))};
  write_file_atomically(path.string(), parts);
}

// False where the program is not installed or fails.
bool convert_to_png(const fs::path& svg) {
  fs::path png = svg;
  png.replace_extension(".png");
  std::vector<std::string> words = {"rsvg-convert", "--zoom",     "2",
                                    "--output",     png.string(), svg.string()};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  if (::posix_spawnp(&child, "rsvg-convert", nullptr, nullptr, arguments.data(), environ) != 0)
    return false;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return false;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

std::string own_policy(const RankStudy& study) {
  std::string first;
  for (const RankResult& result : study.results) {
    for (const Json& entry : result.summary.at("summary")) {
      const std::string policy = entry.at("policy").get<std::string>();
      if (policy == "dbtrimkv") return policy;
      if (first.empty() && policy != "full") first = policy;
    }
  }
  return first;
}

bool write_rank_output(const RankStudy& study, const std::string& folder) {
  const RankReport report = [&study] {
    try {
      return make_rank_report(study);
    } catch (const Json::exception& error) {
      fail_argument("a summary of the study is not what its task gives: {}", error.what());
    }
  }();
  const fs::path out = folder, plots = out / "plots";
  std::error_code error;
  fs::create_directories(plots, error);
  if (error) fail(ErrorCode::kNotFound, "cannot make {}: {}", plots.string(), error.message());
  bool converted = true;
  for (const auto& [name, svg] : report.plots) {
    const fs::path path = plots / (name + ".svg");
    write_text(path, svg.file());
    converted = converted && convert_to_png(path);
  }
  for (const auto& [name, text] : report.tables) write_text(out / name, text);
  write_text(out / "report.html", report.html);
  return converted;
}

}  // namespace coppice
