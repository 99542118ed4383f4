// The stored members of a zip archive; torch_archive.h says which archives are read.
#include <array>

#include "coppice/core/error.h"
#include "coppice/loader/byte_reader.h"
#include "coppice/loader/torch_archive.h"

namespace coppice {
namespace {

constexpr uint32_t kEndMagic = 0x06054b50;      // end of central directory
constexpr uint32_t kCentralMagic = 0x02014b50;  // one member in the central directory
constexpr uint32_t kLocalMagic = 0x04034b50;    // before a member's data
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kMaxComment = 65535;
constexpr uint32_t kWide = 0xFFFFFFFF;  // stands for "see the zip64 record"

uint32_t crc32(std::span<const std::byte> bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
      made[i] = value;
    }
    return made;
  }();
  uint32_t value = 0xFFFFFFFF;
  for (const std::byte b : bytes) {
    value = value >> 8 ^ table[(value ^ static_cast<uint32_t>(b)) & 0xFF];
  }
  return ~value;
}

struct Directory {
  uint64_t offset, size, members;
};

Directory find_directory(std::span<const std::byte> bytes, const std::string& what) {
  if (bytes.size() < kEndBytes)
    fail_argument("{}: not a zip archive: {} bytes", what, bytes.size());
  const std::size_t last = bytes.size() - kEndBytes;
  const std::size_t first = last > kMaxComment ? last - kMaxComment : 0;
  for (std::size_t at = last + 1; at-- > first;) {
    ByteReader reader(bytes.subspan(at), what);
    if (reader.read<uint32_t>("the end record") != kEndMagic) continue;
    const auto disk = reader.read<uint16_t>("the disk number");
    const auto directory_disk = reader.read<uint16_t>("the disk number");
    const auto here = reader.read<uint16_t>("the member count");
    const auto members = reader.read<uint16_t>("the member count");
    const auto size = reader.read<uint32_t>("the directory size");
    const auto offset = reader.read<uint32_t>("the directory offset");
    if (disk != 0 || directory_disk != 0 || here != members || offset == kWide || size == kWide ||
        members == 0xFFFF) {
      fail_argument("{}: a zip archive of several disks or above 4 GB, which is not supported",
                    what);
    }
    if (offset > at || size > at - offset) {
      fail_argument("{}: the zip directory of {} bytes at {} passes the end of the archive", what,
                    size, offset);
    }
    return {offset, size, members};
  }
  fail_argument("{}: not a zip archive, or cut off: it has no end record", what);
}

// The data of the member whose local header stands at `offset`.
std::span<const std::byte> member_data(std::span<const std::byte> bytes, uint64_t offset,
                                       uint64_t size, const std::string& what,
                                       std::string_view name) {
  if (offset > bytes.size()) fail_argument("{}: member {} starts past the end", what, name);
  ByteReader reader(bytes.subspan(offset), what);
  if (reader.read<uint32_t>(name) != kLocalMagic) {
    fail_argument("{}: member {} has no local header", what, name);
  }
  reader.take(22, name);
  const auto name_bytes = reader.read<uint16_t>(name);
  const auto extra_bytes = reader.read<uint16_t>(name);
  reader.take(std::size_t{name_bytes} + extra_bytes, name);
  return reader.take(size, name);
}

}  // namespace

std::map<std::string, std::span<const std::byte>, std::less<>> read_zip(
    std::span<const std::byte> bytes, const std::string& what) {
  const Directory directory = find_directory(bytes, what);
  ByteReader reader(bytes.subspan(directory.offset, directory.size), what);
  std::map<std::string, std::span<const std::byte>, std::less<>> members;
  for (uint64_t i = 0; i < directory.members; ++i) {
    if (reader.read<uint32_t>("the zip directory") != kCentralMagic) {
      fail_argument("{}: the zip directory is damaged at member {}", what, i);
    }
    reader.take(4, "the versions");
    const auto flags = reader.read<uint16_t>("the flags");
    const auto method = reader.read<uint16_t>("the method");
    reader.take(4, "the time");
    const auto crc = reader.read<uint32_t>("the checksum");
    const auto packed = reader.read<uint32_t>("the size");
    const auto size = reader.read<uint32_t>("the size");
    const auto name_bytes = reader.read<uint16_t>("the name length");
    const auto extra_bytes = reader.read<uint16_t>("the extra length");
    const auto comment_bytes = reader.read<uint16_t>("the comment length");
    reader.take(8, "the attributes");
    const auto offset = reader.read<uint32_t>("the offset");
    const std::string name(reader.text(name_bytes, "a member name"));
    reader.take(std::size_t{extra_bytes} + comment_bytes, name);
    if ((flags & 1) != 0 || method != 0 || packed != size || size == kWide || offset == kWide) {
      fail_argument("{}: member {} is compressed, encrypted or above 4 GB, which is not supported",
                    what, name);
    }
    const auto data = member_data(bytes, offset, size, what, name);
    if (crc32(data) != crc) {
      fail_argument("{}: the checksum of member {} does not match: the file is damaged", what,
                    name);
    }
    if (!members.emplace(name, data).second) {
      fail_argument("{}: member {} stands twice", what, name);
    }
  }
  return members;
}

}  // namespace coppice
