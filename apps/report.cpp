#include "apps/report.h"

#include <array>
#include <iostream>
#include <utility>

namespace coppice {

std::string human_bytes(double bytes) {
  static constexpr std::array<const char*, 4> kUnits = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) bytes /= 1024, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string human_count(int64_t number) {
  const std::string digits = fmt::format("{}", number);
  std::string grouped;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string usage_line(const RequestOutput& output, const CacheConfig& cache) {
  const KvUsage& kv = output.usage.kv;
  const TokenUsage& tokens = output.usage.tokens;
  const int64_t seen = tokens.prompt + tokens.generated;
  const double full = static_cast<double>(seen * cache.num_rows() * cache.entry_bytes());
  const std::string images =
      kv.kept_image_entries > 0
          ? fmt::format(" ({} of pictures)", human_count(kv.kept_image_entries))
          : std::string();
  std::string line = fmt::format(
      "[{} tokens seen ({} reused) | {} of {} KV entries kept{}, {} evicted | KV at most {} of {} "
      "bound; full "
      "cache {} | read {:.0f}, wrote {:.0f} tokens/s | {}]",
      human_count(seen), human_count(tokens.reused), human_count(kv.kept_entries),
      human_count(kv.kept_entries + kv.evicted_entries), images, human_count(kv.evicted_entries),
      human_bytes(static_cast<double>(kv.bytes_peak)),
      human_bytes(static_cast<double>(kv.bytes_bound)), human_bytes(full),
      output.usage.timing.prefill_tokens_per_s, output.usage.timing.decode_tokens_per_s, kv.policy);
  return line;
}

void print_answer(RequestOutput output, double load_seconds, const CacheConfig& cache, bool json) {
  output.usage.timing.load_s = load_seconds;
  if (json) {
    std::cout << dump_json(result_json(output.text, output.finish_reason, output.usage))
              << std::endl;
  } else {
    std::cout << std::endl;
    std::cerr << usage_line(output, cache) << "\n";
  }
}

}  // namespace coppice
