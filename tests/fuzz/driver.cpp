// Runs a fuzz target without libFuzzer: replays its seeds, then mutates them, always in the same
// order for the same seed.
//
//   fuzz_x [--seconds S] [--runs N] [--seed K] [FILE ...]
//
// Stops after S seconds (5) or N inputs (no bound), whichever comes first; with files, runs those
// alone. Exit code 0: nothing found. A fault leaves its input in crash-<target>, to be replayed as
// a FILE. An input that takes more than 2 s of processor time, or lets memory grow above 512 MiB,
// is a fault too.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <iterator>

#include "coppice/core/rng.h"
#include "tests/fuzz/fuzz_target.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

constexpr double kMaxInputSeconds = 2.0;
constexpr long kMaxGrowthKib = 512L * 1024;
constexpr std::size_t kMaxInputBytes = std::size_t{1} << 16;

std::string g_crash_path;
const std::string* g_current = nullptr;

void save_current() {
  if (!g_current) return;
  std::ofstream(g_crash_path, std::ios::binary) << *g_current;
  std::fprintf(stderr, "the input is in %s\n", g_crash_path.c_str());
}

[[noreturn]] void fault(const char* reason) {
  std::fprintf(stderr, "fault: %s\n", reason);
  save_current();
  std::_Exit(1);
}

long peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

void run(const std::string& input) {
  static const long start_kib = peak_kib();
  g_current = &input;
  const std::clock_t begin = std::clock();
  try {
    // A copy of exactly this size, so that a read past its end is seen.
    const std::vector<uint8_t> exact(input.begin(), input.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  } catch (const std::exception& error) {
    fault(error.what());
  }
  if (static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC > kMaxInputSeconds) {
    fault("the input took too long");
  }
  if (peak_kib() - start_kib > kMaxGrowthKib) fault("the input took too much memory");
  g_current = nullptr;
}

// One random change. Integers that parsers trip over are written in both widths.
void mutate(std::string& input, const std::vector<std::string>& seeds, coppice::Rng& rng) {
  const auto place = [&] { return static_cast<std::size_t>(rng.below(input.size() + 1)); };
  const auto length = [&](std::size_t most) {
    return static_cast<std::size_t>(rng.below(std::min<std::size_t>(most, 64) + 1));
  };
  const std::size_t at = place();
  switch (rng.below(9)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << rng.below(8)));
      return;
    case 1:
      if (at < input.size()) input[at] = static_cast<char>(rng.below(256));
      return;
    case 2:
      input.erase(at, length(input.size() - at));
      return;
    case 3: {
      const std::string piece = input.substr(at, length(input.size() - at));
      input.insert(place(), piece);
      return;
    }
    case 4:
      input.resize(at);
      return;
    case 5: {
      static constexpr uint64_t kValues[] = {0,
                                             1,
                                             2,
                                             31,
                                             32,
                                             127,
                                             128,
                                             255,
                                             256,
                                             65535,
                                             65536,
                                             0x7FFFFFFF,
                                             0x80000000,
                                             0xFFFFFFFF,
                                             uint64_t{1} << 32,
                                             uint64_t{1} << 62,
                                             INT64_MAX,
                                             uint64_t{1} << 63,
                                             UINT64_MAX - 31,
                                             UINT64_MAX};
      const uint64_t value = kValues[rng.below(std::size(kValues))];
      const std::size_t width = rng.below(2) ? 8 : 4;
      if (input.size() - at >= width) std::memcpy(input.data() + at, &value, width);
      return;
    }
    case 6: {  // the tail of another seed
      const std::string& other = seeds[rng.below(seeds.size())];
      input.resize(at);
      input += other.substr(rng.below(other.size() + 1));
      return;
    }
    case 7: {  // characters that texts are made of
      static constexpr std::string_view kTexts[] = {"{",
                                                    "}",
                                                    "[",
                                                    "]",
                                                    "\"",
                                                    "\\",
                                                    ":",
                                                    ",",
                                                    "-1",
                                                    "1e30",
                                                    "null",
                                                    "true",
                                                    "{%",
                                                    "%}",
                                                    "{{",
                                                    "}}",
                                                    "\\ud83d",
                                                    "\xC0\x80",
                                                    "\xF4\x90\x80\x80",
                                                    "99999999999999999999",
                                                    "[[[[[[[[",
                                                    "((((("};
      input.insert(at, kTexts[rng.below(std::size(kTexts))]);
      return;
    }
    default:
      input.insert(at, length(64), static_cast<char>(rng.below(256)));
  }
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 5;
  uint64_t runs = UINT64_MAX, seed = 1;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "0";
    if (option == "--seconds") {
      seconds = std::atof(value), ++i;
    } else if (option == "--runs") {
      runs = std::strtoull(value, nullptr, 10), ++i;
    } else if (option == "--seed") {
      seed = std::strtoull(value, nullptr, 10), ++i;
    } else {
      files.push_back(option);
    }
  }
  const std::string program = argv[0];
  g_crash_path = "crash-" + program.substr(program.rfind('/') + 1);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(save_current);
#endif
  std::set_terminate([] { fault("an exception escaped"); });

  if (!files.empty()) {
    for (const std::string& path : files) {
      std::ifstream file(path, std::ios::binary);
      run(std::string(std::istreambuf_iterator<char>(file), {}));
    }
    return 0;
  }
  const std::vector<std::string> seeds = fuzz_seeds();
  if (seeds.empty()) fault("the target has no seeds");
  for (const std::string& one : seeds) run(one);
  coppice::Rng rng(seed);
  const auto start = std::chrono::steady_clock::now();
  uint64_t done = 0;
  for (; done < runs && seconds_since(start) < seconds; ++done) {
    std::string input = seeds[rng.below(seeds.size())];
    for (uint64_t change = rng.below(6) + 1; change-- > 0;) mutate(input, seeds, rng);
    if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
    run(input);
  }
  std::printf("%zu seeds and %llu mutations, nothing found\n", seeds.size(),
              static_cast<unsigned long long>(done));
  return 0;
}
