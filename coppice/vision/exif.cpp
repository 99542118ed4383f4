// The one tag of EXIF that changes pixels. Layout: TIFF 6.0, section 2; tag 0x0112.
#include <cstring>
#include <string_view>

#include "coppice/vision/decoders.h"

namespace coppice::vision {
namespace {

class Block final {
 public:
  explicit Block(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool starts_with(std::string_view text) const {
    return bytes_.size() >= text.size() &&
           std::memcmp(bytes_.data(), text.data(), text.size()) == 0;
  }
  void skip(std::size_t bytes) { bytes_ = bytes_.subspan(bytes); }
  void set_big_endian(bool big) { big_ = big; }

  bool holds(uint64_t at, uint64_t bytes) const {
    return at <= bytes_.size() && bytes <= bytes_.size() - at;
  }
  // REQUIRES: holds(at, bytes), bytes <= 4.
  uint32_t number(uint64_t at, int bytes) const {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      const uint64_t place = big_ ? at + i : at + bytes - 1 - i;
      value = value << 8 | std::to_integer<uint32_t>(bytes_[place]);
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool big_ = false;
};

}  // namespace

int exif_orientation(std::span<const std::byte> bytes) {
  constexpr std::string_view kMark("Exif\0\0", 6);
  constexpr uint32_t kOrientation = 0x0112, kShort = 3;
  Block block(bytes);
  if (block.starts_with(kMark)) block.skip(kMark.size());
  if (!block.starts_with("II") && !block.starts_with("MM")) return 1;
  block.set_big_endian(block.starts_with("MM"));
  if (!block.holds(0, 8) || block.number(2, 2) != 42) return 1;
  const uint64_t directory = block.number(4, 4);
  if (!block.holds(directory, 2)) return 1;
  const uint32_t entries = block.number(directory, 2);
  for (uint32_t i = 0; i < entries; ++i) {
    const uint64_t at = directory + 2 + uint64_t{12} * i;
    if (!block.holds(at, 12)) return 1;
    if (block.number(at, 2) != kOrientation) continue;
    if (block.number(at + 2, 2) != kShort || block.number(at + 4, 4) != 1) return 1;
    const uint32_t value = block.number(at + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace coppice::vision
