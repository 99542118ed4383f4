// PNG through libpng. Its errors jump, so everything that has a destructor lives outside read_png.
#include <png.h>

#include <csetjmp>
#include <cstring>
#include <string>

#include "coppice/core/error.h"
#include "coppice/vision/decoders.h"

namespace coppice::vision {
namespace {

struct PngSource {
  std::span<const std::byte> rest;
  char message[160] = "";
};

extern "C" void png_take(png_structp png, png_bytep to, size_t bytes) {
  auto* source = static_cast<PngSource*>(png_get_io_ptr(png));
  if (bytes > source->rest.size()) png_error(png, "the file ends too early");
  std::memcpy(to, source->rest.data(), bytes);
  source->rest = source->rest.subspan(bytes);
}

extern "C" void png_failed(png_structp png, png_const_charp message) {
  auto* source = static_cast<PngSource*>(png_get_error_ptr(png));
  std::strncpy(source->message, message, sizeof(source->message) - 1);
  longjmp(png_jmpbuf(png), 1);
}

extern "C" void png_warned(png_structp, png_const_charp) {}

struct PngReader {
  PngSource source;
  png_structp png = nullptr;
  png_infop info = nullptr;

  explicit PngReader(std::span<const std::byte> file) {
    source.rest = file;
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, png_failed, png_warned);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) fail(ErrorCode::kCapacity, "picture: no memory to read a PNG");
    png_set_read_fn(png, &source, png_take);
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // set_size() checks
    png_set_chunk_malloc_max(png, 4 << 20);
    png_set_chunk_cache_max(png, 64);
  }
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
};

bool read_header(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png))) return false;
  png_read_info(reader.png, reader.info);
  return true;
}

// Rows of 8-bit RGBA into `rows`, one pointer for each.
bool read_pixels(PngReader& reader, png_bytepp rows) {
  if (setjmp(png_jmpbuf(reader.png))) return false;
  png_set_expand(reader.png);    // palettes, less than 8 bits, transparent colours
  png_set_strip_16(reader.png);  // the high byte
  png_set_gray_to_rgb(reader.png);
  png_set_add_alpha(reader.png, 0xFF, PNG_FILLER_AFTER);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  png_read_image(reader.png, rows);
  return true;
}

int stored_orientation(PngReader& reader) {
#ifdef PNG_eXIf_SUPPORTED
  png_bytep exif = nullptr;
  png_uint_32 bytes = 0;
  if (png_get_eXIf_1(reader.png, reader.info, &bytes, &exif) != 0 && exif != nullptr)
    return exif_orientation({reinterpret_cast<const std::byte*>(exif), bytes});
#endif
  return 1;
}

}  // namespace

StoredPicture decode_png(std::span<const std::byte> file, const PictureLimits& limits) {
  PngReader reader(file);
  StoredPicture stored;
  const auto check = [&reader](bool good) {
    if (!good) fail_argument("picture: the PNG is damaged: {}", reader.source.message);
  };
  check(read_header(reader));
  set_size(stored, png_get_image_width(reader.png, reader.info),
           png_get_image_height(reader.png, reader.info), limits);
  stored.orientation = stored_orientation(reader);
  std::vector<png_bytep> rows;
  for (int64_t y = 0; y < stored.height; ++y)
    rows.push_back(stored.rgba.data() + y * stored.width * 4);
  check(read_pixels(reader, rows.data()));
  return stored;
}

}  // namespace coppice::vision
