// Picture files of every format, and EXIF blocks by themselves.
#include <filesystem>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/vision/decoders.h"
#include "coppice/vision/picture.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const coppice::Picture picture = coppice::decode_picture(bytes, {.max_pixels = 1 << 20});
    if (picture.width * picture.height * 3 != static_cast<int64_t>(picture.rgb.size()))
      __builtin_trap();
  } catch (const coppice::Error&) {
  }
  const int orientation = coppice::vision::exif_orientation(bytes);
  if (orientation < 1 || orientation > 8) __builtin_trap();
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const auto& item :
       std::filesystem::directory_iterator(COPPICE_SOURCE_DIR "/tests/golden/pictures"))
    if (item.path().extension() != ".json")
      seeds.push_back(coppice::read_text_file(item.path().string()));
  // An EXIF block alone.
  seeds.emplace_back("Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0", 32);
  return seeds;
}
