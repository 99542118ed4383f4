#include "apps/train_progress.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "apps/report.h"
#include "coppice/core/error.h"

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLineSeconds = 20.0;  // between lines where there is no terminal
constexpr int64_t kBarCells = 24;

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  return fmt::format("{}:{:02d}:{:02d}", whole / 3600, whole / 60 % 60, whole % 60);
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Progress::Progress(int64_t steps) : steps_(steps), terminal_(::isatty(STDERR_FILENO) != 0) {}

void Progress::begin(int64_t done, int64_t parameters, const Json& manifest) {
  first_ = done;
  start_ = shown_ = Clock::now();
  for (const Json& file : manifest)
    std::fprintf(stderr, "data: %s, %s documents, %s\n", file["path"].get<std::string>().c_str(),
                 human_count(file["documents"].get<int64_t>()).c_str(),
                 human_bytes(static_cast<double>(file["bytes"].get<int64_t>())).c_str());
  std::fprintf(stderr, "%s parameters; step %ld of %ld\n", human_count(parameters).c_str(), done,
               steps_);
}

void Progress::show(const Json& record) {
  const auto step = record["step"].get<int64_t>();
  const Clock::time_point now = Clock::now();
  if (!terminal_ && step != steps_ && step != first_ + 1 &&
      seconds_between(shown_, now) < kLineSeconds)
    return;
  shown_ = now;
  std::string numbers;
  for (const auto& [key, name] : {std::pair{"kl", "KL"},
                                  {"ntp", "NTP"},
                                  {"capacity", "over"},
                                  {"survival", "survival"},
                                  {"pair", "pairs"},
                                  {"repeat", "loss"},
                                  {"r2", "R2"}})
    if (record.contains(key)) numbers += fmt::format("{} {:.4f}  ", name, record.value(key, 0.0));
  const double left = seconds_between(start_, now) / static_cast<double>(step - first_) *
                      static_cast<double>(steps_ - step);
  const std::string text = fmt::format("{}|g| {:.3f}  {:.0f} tokens/s  {} left", numbers,
                                       record.value("gradient_norm", 0.0),
                                       record.value("tokens_per_s", 0.0), clock_text(left));
  if (!terminal_) {
    std::fprintf(stderr, "step %ld of %ld  %s\n", step, steps_, text.c_str());
    return;
  }
  const int64_t full = step * kBarCells / steps_;
  const std::string bar = std::string(static_cast<std::size_t>(full), '#') +
                          std::string(static_cast<std::size_t>(kBarCells - full), '.');
  std::fprintf(stderr, "\r\033[K[%s] %ld/%ld  %s%s", bar.c_str(), step, steps_, text.c_str(),
               step == steps_ ? "\n" : "");
}

void Progress::show_evaluation(int64_t step, const Json& found) {
  std::string text;
  for (const Json& row : found["budgets"])
    text += fmt::format("  {} -> {:.4f}", row["budget"].get<int64_t>(), row["ratio"].get<double>());
  std::fprintf(stderr, "%sstep %ld, held out, perplexity over the full cache's at budget:%s\n",
               terminal_ ? "\r\033[K" : "", step, text.c_str());
}

}  // namespace coppice
