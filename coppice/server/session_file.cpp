#include "coppice/server/session_file.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <cstring>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/core/sha256.h"

namespace coppice {
namespace {

static_assert(std::endian::native == std::endian::little);
constexpr std::string_view kMagic = "coppice session 1\n";
constexpr std::string_view kAnyVersion = "coppice session ";
constexpr std::size_t kHashBytes = 64;
constexpr int64_t kMaxHeaderBytes = 16 << 20;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

Json eviction_json(const EvictionConfig& config) {
  return {{"policy", config.policy},
          {"budget", config.budget_entries},
          {"sinks", *config.sinks},
          {"recent", *config.recent},
          {"floor", *config.floor},
          {"lookahead", config.lookahead},
          {"seed", config.seed},
          {"scope", static_cast<int>(*config.scope)},
          {"parity", config.parity_reference},
          {"buffer", config.buffer},
          {"options", config.options}};
}

// Takes fixed-size pieces off the front.
class Reader final {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> take(uint64_t count) {
    if (count > bytes_.size()) {
      fail_argument("session file: {} bytes are wanted where {} are left", count, bytes_.size());
    }
    const auto piece = bytes_.first(static_cast<std::size_t>(count));
    bytes_ = bytes_.subspan(static_cast<std::size_t>(count));
    return piece;
  }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

int64_t number(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) {
    fail_argument("session file: the header has no whole number \"{}\"", name);
  }
  return found->get<int64_t>();
}

EvictionConfig read_eviction(const Json& json) {
  EvictionConfig config;
  try {
    config.policy = json.at("policy").get<std::string>();
    config.seed = json.at("seed").get<uint64_t>();
    config.parity_reference = json.at("parity").get<bool>();
    config.options = json.at("options").get<OptionMap>();
  } catch (const Json::exception&) {
    fail_argument("session file: its eviction settings cannot be read");
  }
  config.budget_entries = number(json, "budget");
  config.sinks = number(json, "sinks");
  config.recent = number(json, "recent");
  config.floor = number(json, "floor");
  config.lookahead = number(json, "lookahead");
  config.buffer = number(json, "buffer");
  const int64_t scope = number(json, "scope");
  if (scope < 0 || scope > static_cast<int64_t>(Scope::kGlobal)) {
    fail_argument("session file: there is no scope {}", scope);
  }
  config.scope = static_cast<Scope>(scope);
  return config;
}

void check_frame(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(kMagic)) {
    if (text.starts_with(kAnyVersion)) {
      fail_argument("session file: it is of another version than 1");
    }
    fail_argument("session file: it does not begin like one ({} bytes)", file.size());
  }
  if (file.size() < kMagic.size() + sizeof(uint64_t) + kHashBytes) {
    fail_argument("session file: cut off after {} bytes", file.size());
  }
  Sha256 hash;
  hash.update(file.first(file.size() - kHashBytes));
  if (hash.finish() != text.substr(file.size() - kHashBytes)) {
    fail_argument("session file: damaged or cut off, its checksum does not hold");
  }
}

std::vector<int64_t> read_lengths(const Json& header, std::size_t file_bytes) {
  const auto found = header.find("lengths");
  if (found == header.end() || !found->is_array()) {
    fail_argument("session file: the header has no lengths of rows");
  }
  std::vector<int64_t> lengths;
  for (const Json& length : *found) {
    const bool fits =
        length.is_number_integer() && length >= 0 && length <= static_cast<int64_t>(file_bytes);
    if (!fits) fail_argument("session file: a row's length is none that the file could hold");
    lengths.push_back(length.get<int64_t>());
  }
  return lengths;
}

}  // namespace

SessionFile::SessionFile(const SessionImage& image, const std::string& settings) {
  const Json header = {{"settings", settings},
                       {"eviction", eviction_json(image.eviction)},
                       {"tokens", image.tokens.size()},
                       {"tokens_seen", image.cache.tokens_seen},
                       {"next_rotary", image.cache.next_rotary},
                       {"evicted_entries", image.evicted_entries},
                       {"peak_entries", image.peak_entries},
                       {"peak_blocks", image.peak_blocks},
                       {"lengths", image.cache.lengths}};
  const std::string text = dump_json(header);
  head_ = kMagic;
  const uint64_t size = text.size();
  head_.append(reinterpret_cast<const char*>(&size), sizeof size);
  head_ += text;
  parts_.push_back(bytes_of(head_));
  parts_.push_back(std::as_bytes(std::span(image.tokens)));
  for (const at::Tensor& pool : image.cache.pools) parts_.push_back(bytes_of(pool));
  Sha256 hash;
  for (const auto part : parts_) hash.update(part);
  hash_ = hash.finish();
  parts_.push_back(bytes_of(hash_));
}

int64_t SessionFile::bytes() const {
  int64_t total = 0;
  for (const auto part : parts_) total += static_cast<int64_t>(part.size());
  return total;
}

SessionImage read_session(std::span<const std::byte> file, const std::string& settings,
                          std::span<const at::Tensor> like) {
  check_frame(file);
  Reader reader(file.first(file.size() - kHashBytes));
  reader.take(kMagic.size());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, reader.take(sizeof header_bytes).data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes) {
    fail_argument("session file: a header of {} bytes", header_bytes);
  }
  const auto head = reader.take(header_bytes);
  const Json header = parse_json({reinterpret_cast<const char*>(head.data()), head.size()},
                                 "session file", {.max_depth = 8, .reject_duplicate_keys = true});
  if (!header.is_object() || !header.contains("settings") || !header.contains("eviction")) {
    fail_argument("session file: the header says nothing of its settings");
  }
  if (header["settings"] != settings) {
    fail_argument("session file: made with another model, gate, chunk or cache setting");
  }
  SessionImage image;
  image.eviction = read_eviction(header["eviction"]);
  image.evicted_entries = number(header, "evicted_entries");
  image.peak_entries = number(header, "peak_entries");
  image.peak_blocks = number(header, "peak_blocks");
  image.cache.tokens_seen = number(header, "tokens_seen");
  image.cache.next_rotary = number(header, "next_rotary");
  image.cache.lengths = read_lengths(header, file.size());
  const int64_t tokens = number(header, "tokens");
  if (tokens < 1 || tokens > static_cast<int64_t>(file.size() / sizeof(int32_t))) {
    fail_argument("session file: {} tokens in a file of {} bytes", tokens, file.size());
  }
  image.tokens.resize(static_cast<std::size_t>(tokens));
  const auto ids = reader.take(static_cast<uint64_t>(tokens) * sizeof(int32_t));
  std::memcpy(image.tokens.data(), ids.data(), ids.size());
  int64_t blocks = 0;
  for (const int64_t length : image.cache.lengths) {
    blocks += blocks_for_row(length);
    if (blocks > static_cast<int64_t>(file.size())) {
      fail_argument("session file: its rows are longer than {} bytes can hold", file.size());
    }
  }
  for (const at::Tensor& pool : like) {
    std::vector<int64_t> shape = pool.sizes().vec();
    const uint64_t block_bytes =
        pool.element_size() * static_cast<uint64_t>(c10::multiply_integers(pool.sizes().slice(1)));
    const auto raw = reader.take(static_cast<uint64_t>(blocks) * block_bytes);
    shape[0] = blocks;
    at::Tensor copy = at::empty(shape, pool.options());
    std::memcpy(copy.mutable_data_ptr(), raw.data(), raw.size());
    image.cache.pools.push_back(std::move(copy));
  }
  if (reader.left() != 0) fail_argument("session file: {} bytes too many", reader.left());
  return image;
}

}  // namespace coppice
