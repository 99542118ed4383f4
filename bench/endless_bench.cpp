// Whether a step costs the same however long the text: generates TOKENS tokens at a budget with
// compact positions, and prints the time of every 1,000 tokens and the resident memory.
//   coppice_endless_bench [TOKENS=100000] [BUDGET=256]
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "apps/runtime.h"
#include "coppice/core/error.h"

namespace coppice {
namespace {

double resident_mib() {
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 0x1p20;
}

void run(int64_t tokens, const std::string& budget) {
  ModelOptions options;
  options.budget = KvBudget::parse(budget);
  options.positions = "compact";
  const Runtime runtime(options);
  Request request;
  request.prompt = runtime.tokenizer().encode("Once upon a time");
  request.sampling.max_tokens = tokens;
  request.sampling.ignore_eos = true;
  request.sampling.temperature = 1.0;  // greedy text would soon repeat itself
  request.sampling.seed = 1;
  const auto engine = runtime.make_engine(tokens, EvictionConfig::kUnbounded);

  int64_t done = 0;
  auto start = std::chrono::steady_clock::now();
  std::printf("tokens  ms/token  resident MiB\n");
  // Step by step: run() would keep a record of the whole answer, which grows with it.
  engine->submit(request);
  RequestOutput last;
  while (engine->has_work()) {
    for (RequestOutput& part : engine->step()) {
      if (part.error) throw Error(part.error->code, part.error->message);
      done += static_cast<int64_t>(part.tokens.size());
      if (!part.tokens.empty() && done % 1000 == 0) {
        const auto now = std::chrono::steady_clock::now();
        std::printf("%6ld  %8.4f  %12.1f\n", done,
                    std::chrono::duration<double>(now - start).count(), resident_mib());
        std::fflush(stdout);
        start = now;
      }
      last = std::move(part);
    }
  }
  std::printf("kept %ld, evicted %ld, bytes at most %ld of %ld\n", last.usage.kv.kept_entries,
              last.usage.kv.evicted_entries, last.usage.kv.bytes_peak, last.usage.kv.bytes_bound);
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  try {
    coppice::run(argc > 1 ? std::atol(argv[1]) : 100000, argc > 2 ? argv[2] : "256");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "endless_bench: %s\n", error.what());
    return 1;
  }
}
