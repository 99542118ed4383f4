// The first page of a TIFF, through libtiff's RGBA reader.
#include <tiffio.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "coppice/core/error.h"
#include "coppice/vision/decoders.h"

namespace coppice::vision {
namespace {

struct TiffSource {
  std::span<const std::byte> file;
  uint64_t at = 0;
  std::string message;  // the first error
};

extern "C" tmsize_t tiff_take(thandle_t handle, void* to, tmsize_t bytes) {
  auto* source = static_cast<TiffSource*>(handle);
  if (bytes <= 0 || source->at >= source->file.size()) return 0;
  const auto count =
      std::min<uint64_t>(static_cast<uint64_t>(bytes), source->file.size() - source->at);
  std::memcpy(to, source->file.data() + source->at, count);
  source->at += count;
  return static_cast<tmsize_t>(count);
}
extern "C" tmsize_t tiff_put(thandle_t, void*, tmsize_t) { return 0; }
extern "C" toff_t tiff_seek(thandle_t handle, toff_t to, int from) {
  auto* source = static_cast<TiffSource*>(handle);
  const uint64_t base = from == SEEK_CUR ? source->at : from == SEEK_END ? source->file.size() : 0;
  source->at = base + to;
  return source->at;
}
extern "C" int tiff_close(thandle_t) { return 0; }
extern "C" toff_t tiff_size(thandle_t handle) {
  return static_cast<TiffSource*>(handle)->file.size();
}
extern "C" int tiff_failed(TIFF*, void* user, const char*, const char* format, va_list values) {
  auto* source = static_cast<TiffSource*>(user);
  char text[200];
  std::vsnprintf(text, sizeof(text), format, values);
  if (source->message.empty()) source->message = text;
  return 1;  // nothing is printed
}
extern "C" int tiff_warned(TIFF*, void*, const char*, const char*, va_list) { return 1; }

using Tiff = std::unique_ptr<TIFF, void (*)(TIFF*)>;

Tiff open_tiff(TiffSource& source, const PictureLimits& limits) {
  const std::unique_ptr<TIFFOpenOptions, void (*)(TIFFOpenOptions*)> options(TIFFOpenOptionsAlloc(),
                                                                             TIFFOpenOptionsFree);
  if (!options) fail(ErrorCode::kCapacity, "picture: no memory to read a TIFF");
  TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(), limits.max_pixels * 8 + (1 << 20));
  TIFFOpenOptionsSetErrorHandlerExtR(options.get(), tiff_failed, &source);
  TIFFOpenOptionsSetWarningHandlerExtR(options.get(), tiff_warned, nullptr);
  // "m": no mapping
  return {TIFFClientOpenExt("picture", "rm", &source, tiff_take, tiff_put, tiff_seek, tiff_close,
                            tiff_size, nullptr, nullptr, options.get()),
          TIFFClose};
}

bool is_read(uint16_t compression) {
  constexpr uint16_t kRead[] = {
      COMPRESSION_NONE,      COMPRESSION_CCITTRLE, COMPRESSION_CCITTFAX3,
      COMPRESSION_CCITTFAX4, COMPRESSION_LZW,      COMPRESSION_JPEG,
      COMPRESSION_PACKBITS,  COMPRESSION_DEFLATE,  COMPRESSION_ADOBE_DEFLATE};
  return std::find(std::begin(kRead), std::end(kRead), compression) != std::end(kRead);
}

}  // namespace

StoredPicture decode_tiff(std::span<const std::byte> file, const PictureLimits& limits) {
  TiffSource source;
  source.file = file;
  const auto damaged = [&source] {
    fail_argument("picture: the TIFF is damaged or of a kind that is not read: {}",
                  source.message.empty() ? "it cannot be opened" : source.message);
  };
  const Tiff tiff = open_tiff(source, limits);
  if (!tiff) damaged();
  uint32_t width = 0, height = 0;
  TIFFGetField(tiff.get(), TIFFTAG_IMAGEWIDTH, &width);
  TIFFGetField(tiff.get(), TIFFTAG_IMAGELENGTH, &height);
  StoredPicture stored;
  set_size(stored, width, height, limits);
  uint16_t compression = COMPRESSION_NONE, orientation = ORIENTATION_TOPLEFT;
  TIFFGetFieldDefaulted(tiff.get(), TIFFTAG_COMPRESSION, &compression);
  if (!is_read(compression))
    fail_argument(
        "picture: TIFF compression {} is not read; expected none, LZW, deflate, "
        "PackBits, JPEG or fax",
        compression);
  TIFFGetFieldDefaulted(tiff.get(), TIFFTAG_ORIENTATION, &orientation);
  if (orientation < 1 || orientation > 8) orientation = ORIENTATION_TOPLEFT;
  char why[1024] = "";
  if (TIFFRGBAImageOK(tiff.get(), why) == 0) {
    source.message = why;
    damaged();
  }
  // One 32-bit word a pixel: red in its lowest byte. Asked for in the file's own orientation, so
  // that the rows come as they are stored.
  std::vector<uint32_t> words(static_cast<std::size_t>(stored.width * stored.height));
  if (TIFFReadRGBAImageOriented(tiff.get(), width, height, words.data(), orientation,
                                /*stop_on_error=*/1) == 0)
    damaged();
  for (std::size_t i = 0; i < words.size(); ++i) {
    stored.rgba[4 * i] = static_cast<uint8_t>(TIFFGetR(words[i]));
    stored.rgba[4 * i + 1] = static_cast<uint8_t>(TIFFGetG(words[i]));
    stored.rgba[4 * i + 2] = static_cast<uint8_t>(TIFFGetB(words[i]));
    stored.rgba[4 * i + 3] = static_cast<uint8_t>(TIFFGetA(words[i]));
  }
  stored.premultiplied = true;
  stored.orientation = orientation;
  return stored;
}

}  // namespace coppice::vision
