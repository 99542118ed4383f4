// Tokenizes for tokenizer_parity.py.
//
//   tokenize_tool VOCABULARY            JSON strings on stdin, one a line -> [ids, decoded text]
//   each tokenize_tool VOCABULARY --bench F  encodes the file F several times, prints MB/s and
//   tokens/s
//
// VOCABULARY is a GGUF file or a tokenizer.json.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/core/mapped_file.h"
#include "coppice/processor/tokenizer.h"
#include "tests/parity/gguf_metadata.h"

namespace {

using coppice::Json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

coppice::Tokenizer open(const std::string& path) {
  if (path.ends_with(".json")) {
    return coppice::Tokenizer::from_tokenizer_json(coppice::read_text_file(path));
  }
  return coppice::Tokenizer::from_gguf(coppice::testing::GgufMetadata(path).fields());
}

void bench(const coppice::Tokenizer& tokenizer, const std::string& path) {
  const std::string text = coppice::read_text_file(path);
  double best = 1e9;
  size_t tokens = 0;
  for (int i = 0; i < 7; ++i) {
    const auto start = Clock::now();
    tokens = tokenizer.encode(text).size();
    best = std::min(best, seconds_since(start));
  }
  std::printf("{\"bytes\": %zu, \"tokens\": %zu, \"mb_per_s\": %.2f, \"tokens_per_s\": %.0f}\n",
              text.size(), tokens, static_cast<double>(text.size()) / 1e6 / best,
              static_cast<double>(tokens) / best);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    const auto start = Clock::now();
    const coppice::Tokenizer tokenizer = open(argv[1]);
    std::fprintf(stderr, "loaded %s in %.2f s\n", argv[1], seconds_since(start));
    if (argc == 4 && std::string(argv[2]) == "--bench") {
      bench(tokenizer, argv[3]);
      return 0;
    }
    for (std::string line; std::getline(std::cin, line);) {
      const std::string text = coppice::parse_json(line, "stdin").get<std::string>();
      const auto ids = tokenizer.encode(text);
      std::cout << coppice::dump_json(Json::array({ids, tokenizer.decode(ids)})) << '\n';
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
