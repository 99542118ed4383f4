#include "coppice/cache/cache_config.h"

#include <limits>

#include "coppice/core/error.h"

namespace coppice {
namespace {

// Position and log_beta and aux (4 each), modality (1).
constexpr int64_t kMetadataBytes = 13;
constexpr int64_t kMaxDim = int64_t{1} << 24;

int64_t element_bytes(at::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

void check_size(const char* what, int64_t value) {
  if (value < 1 || value > kMaxDim)
    fail_argument("KV cache: {} must be 1 to {}, got {}", what, kMaxDim, value);
}

}  // namespace

int64_t CacheConfig::entry_bytes() const {
  return 2 * head_dim * element_bytes(dtype) + kMetadataBytes + (rotary_positions ? 4 : 0);
}

void validate(const CacheConfig& config, bool with_blocks) {
  check_size("layers", config.num_layers);
  check_size("KV heads", config.num_kv_heads);
  check_size("head width", config.head_dim);
  if (config.num_rows() > kMaxDim)
    fail_argument("KV cache: layers x KV heads must be at most {}, got {}", kMaxDim,
                  config.num_rows());
  if (config.dtype != at::kFloat && config.dtype != at::kHalf && config.dtype != at::kBFloat16 &&
      config.dtype != at::kDouble)
    fail_argument("KV cache: storage must be float64, float32, float16 or bfloat16, got {}",
                  c10::toString(config.dtype));
  if (!with_blocks) return;
  constexpr int64_t kMaxBlocks = std::numeric_limits<int32_t>::max();
  if (config.max_blocks < 1 || config.max_blocks > kMaxBlocks)
    fail_argument("KV cache: blocks must be 1 to {}, got {}", kMaxBlocks, config.max_blocks);
  if (config.block_bytes() > std::numeric_limits<int64_t>::max() / config.max_blocks)
    fail_argument("KV cache: {} blocks of {} bytes are more than can be counted", config.max_blocks,
                  config.block_bytes());
}

int64_t blocks_for_entries(int64_t entries, int64_t rows) {
  if (entries <= 0 || rows <= 0) return 0;
  if (entries <= rows) return entries;
  return (entries - rows) / kBlockEntries + rows;
}

}  // namespace coppice
